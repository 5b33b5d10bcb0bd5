"""kvferry's plugin beside UCX, both under NIXL: how fast many small pieces move, and how long posting blocks.

    python3 nixl/compare.py [--plugin bin] [--rails tcp/lo] [--ucx tcp] [--piece 12288] [--pieces 2000]

It takes NIXL's Python package, and bin/libplugin_KVFERRY.so (make nixl). There are two processes, one READ after the
other, of pieces with gaps between them on both sides, with a notification each, and the two backends take turns. What
came is compared with what was sent. All is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def agent(name, backend):
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=[backend]))


def pattern(size, seed):
    import numpy

    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)


def say(**what):
    print(json.dumps(what), flush=True)


def register(a, memory):
    a.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")


def descriptors(a, address, args):
    return a.get_xfer_descs([(address + 2 * i * args.piece, args.piece, 0) for i in range(args.pieces)], "DRAM")


def target(args):
    a = agent("target", args.backend)
    memory = pattern(2 * args.piece * args.pieces, 1)
    register(a, memory)
    say(metadata=a.get_agent_metadata().hex(), address=memory.ctypes.data)
    seen = 0
    while select(sys.stdin) is None:  # until the initiator has ended
        seen += sum(len(n) for n in a.get_new_notifs().values())
    deadline = time.monotonic() + 10
    while seen < args.posts and time.monotonic() < deadline:
        seen += sum(len(n) for n in a.get_new_notifs().values())
    say(notifications=seen)
    sys.stdout.flush()
    os._exit(0)


def select(file):
    """A line of the file if there is one, or None after a millisecond."""
    import select as s

    return file.readline() if s.select([file], [], [], 0.001)[0] else None


def initiator(args):
    a = agent("initiator", args.backend)
    memory = pattern(2 * args.piece * args.pieces, 2)
    register(a, memory)
    peer = json.loads(sys.stdin.readline())
    a.add_remote_agent(bytes.fromhex(peer["metadata"]))
    handle = a.initialize_xfer("READ", descriptors(a, memory.ctypes.data, args), descriptors(a, peer["address"], args), "target", b"read")
    posts, cpu, totals = [], [], []
    for i in range(args.posts):
        work, began = time.thread_time(), time.perf_counter()
        state = a.transfer(handle)
        posted, worked = time.perf_counter(), time.thread_time()
        while state == "PROC":
            state = a.check_xfer_state(handle)
        if state != "DONE":
            sys.exit(f"{args.backend}: a transfer ended as {state}")
        if i >= args.warm:
            posts.append((posted - began) * 1e3)
            cpu.append((worked - work) * 1e3)
            totals.append(time.perf_counter() - began)
    expected = pattern(memory.nbytes, 1).reshape(-1, args.piece)[::2]
    if not (memory.reshape(-1, args.piece)[::2] == expected).all():
        sys.exit(f"{args.backend}: other bytes came than were sent")
    size = args.piece * args.pieces
    say(gb_s=size / statistics.median(totals) / 1e9, post_ms=statistics.median(posts), post_cpu_ms=statistics.median(cpu), post_max_ms=max(posts))
    os._exit(0)


def once(args, backend):
    """One round of a backend: two processes, what the initiator says."""
    env = dict(os.environ, KVFERRY_RAILS=args.rails, UCX_TLS=args.ucx)
    env.pop("NIXL_PLUGIN_DIR", None)
    if backend == "KVFERRY":
        env["NIXL_PLUGIN_DIR"] = os.path.abspath(args.plugin)
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--backend", backend, "--role"]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    both = there, here = [subprocess.Popen([*command, role], **pipes) for role in ("target", "initiator")]

    def hear(process):
        for line in process.stdout:
            if line.startswith("{"):  # NIXL prints there too
                return json.loads(line)
        sys.exit(f"{backend}: a process ended: what it printed stands above")

    try:
        here.stdin.write(json.dumps(hear(there)) + "\n")
        here.stdin.flush()
        row = hear(here)
        there.stdin.write("\n")
        there.stdin.flush()
        if (came := hear(there)["notifications"]) != args.posts:
            sys.exit(f"{backend}: {came} notifications of {args.posts}")
        return row
    finally:
        for process in both:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plugin", default="bin", help="the folder of libplugin_KVFERRY.so (default %(default)s)")
    parser.add_argument("--rails", default="tcp/lo", help="kvferry's rails (default %(default)s)")
    parser.add_argument("--ucx", default="tcp", help="UCX_TLS for UCX (default %(default)s)")
    parser.add_argument("--piece", type=int, default=12 << 10, help="bytes of a descriptor (default %(default)s)")
    parser.add_argument("--pieces", type=int, default=2000, help="descriptors of a transfer (default %(default)s)")
    parser.add_argument("--posts", type=int, default=40, help="transfers of a round (default %(default)s)")
    parser.add_argument("--warm", type=int, default=5, help="of these before the figures begin (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the backends take so many turns (default %(default)s)")
    parser.add_argument("--role", choices=("target", "initiator"), help=argparse.SUPPRESS)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not 0 <= args.warm < args.posts:
        parser.error(f"--posts {args.posts} --warm {args.warm}: the first --warm posts are not in the figures: give more --posts, or less --warm")
    if args.role:
        return {"target": target, "initiator": initiator}[args.role](args)
    backends = {"KVFERRY": args.rails, "UCX": args.ucx}
    rows = {b: [] for b in backends}
    for _ in range(args.rounds):
        for b in backends:
            rows[b].append(once(args, b))
    print(f"READ of {args.pieces} pieces of {args.piece} bytes, {args.posts} a round, medians of {args.rounds} rounds")
    print("backend  over               GB/s  post ms  its CPU ms  longest post ms")
    for b, over in backends.items():
        middle = {k: statistics.median(r[k] for r in rows[b]) for k in rows[b][0]}
        print(f"{b:<8} {over:<16} {middle['gb_s']:6.2f} {middle['post_ms']:8.2f} {middle['post_cpu_ms']:11.2f} {middle['post_max_ms']:16.2f}")
    ratios = sorted(k["gb_s"] / u["gb_s"] for k, u in zip(rows["KVFERRY"], rows["UCX"]))
    print(f"KVFERRY / UCX: {statistics.median(ratios):.1f} times as fast, from {ratios[0]:.1f} to {ratios[-1]:.1f}")


if __name__ == "__main__":
    main()
