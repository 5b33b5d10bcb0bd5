"""Two agents of NIXL's own Python package, with kvferry's plugin. Arguments: the folder of the plugin, one for files.

All is in one process but what needs another environment: that is a child, which is this file again.
"""

import json
import os
import subprocess
import sys
import time

PIECE, PIECES = 12 << 10, 500


def until(what, there):
    deadline = time.monotonic() + 60
    while not (value := there()):
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within a minute")
    return value


class Pair:
    def __init__(self, **parameters):
        import numpy
        from nixl._api import nixl_agent, nixl_agent_config

        self.agents = [nixl_agent(name, nixl_agent_config(backends=[], capture_telemetry=True)) for name in ("one", "two")]
        self.memory = [numpy.random.default_rng(i).integers(0, 256, 2 * PIECE * PIECES, dtype=numpy.uint8) for i in range(2)]
        for agent, memory in zip(self.agents, self.memory):
            agent.create_backend("KVFERRY", parameters)
            assert agent.get_backend_mem_types("KVFERRY")[0] == "DRAM_SEG", agent.backend_mems
            agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
        self.one, self.two = self.agents
        assert self.one.add_remote_agent(self.two.get_agent_metadata()) in ("two", b"two")
        self.two.add_remote_agent(self.one.get_agent_metadata())

    def pieces(self, i):
        address = self.memory[i].ctypes.data
        return self.agents[i].get_xfer_descs([(address + 2 * k * PIECE, PIECE, 0) for k in range(PIECES)], "DRAM")

    def equal(self):
        a, b = (m.reshape(-1, PIECE)[::2] for m in self.memory)
        return (a == b).all()

    def transfer(self, handle):
        state = [self.one.transfer(handle)]

        def ended():
            if state[0] == "PROC":
                state[0] = self.one.check_xfer_state(handle)
            return state[0] != "PROC"

        until("a transfer", ended)
        return state[0]

    def notifications(self):
        return until("a notification", self.two.get_new_notifs)


def whole(pair):
    for op in ("READ", "WRITE"):
        handle = pair.one.initialize_xfer(op, pair.pieces(0), pair.pieces(1), "two", op.encode())
        for _ in range(3):
            pair.memory[op == "READ"] += 1
            assert not pair.equal()
            assert pair.transfer(handle) == "DONE" and pair.equal(), op
            assert pair.notifications() == {"one": [op.encode()]}
        telemetry = pair.one.get_xfer_telemetry(handle)
        assert telemetry.totalBytes == PIECE * PIECES and telemetry.xferDuration > 0, telemetry
        pair.one.release_xfer_handle(handle)
    # As vLLM does: lists are prepared once, and a transfer takes some of each.
    here, there = (pair.one.prep_xfer_dlist(name, pair.pieces(i)) for i, name in enumerate(("NIXL_INIT_AGENT", "two")))
    pair.memory[1] += 1
    handle = pair.one.make_prepped_xfer("READ", here, list(range(PIECES)), there, list(range(PIECES)), notif_msg=b"prepared")
    assert pair.transfer(handle) == "DONE" and pair.equal() and pair.notifications() == {"one": [b"prepared"]}
    pair.one.release_xfer_handle(handle)
    pair.one.send_notif("two", b"alone")
    assert pair.notifications() == {"one": [b"alone"]}
    own = pair.one.initialize_xfer("WRITE", pair.pieces(0), pair.pieces(0), "one", b"self")
    assert pair.transfer(own) == "DONE" and until("own", pair.one.get_new_notifs) == {"one": [b"self"]}
    pair.one.release_xfer_handle(own)
    pair.one.remove_remote_agent("two")


def judged(pair):
    """UCX under the judge: the second transfer has flipped bytes, and notifications come twice."""
    handle = pair.one.initialize_xfer("READ", pair.pieces(0), pair.pieces(1), "two", b"note")
    for right in (True, False, True):
        pair.memory[1] += 1
        assert pair.transfer(handle) == "DONE" and pair.equal() == right
        got = []
        until("both", lambda: got.extend(pair.two.get_new_notifs().get("one", [])) or len(got) == 2)
    pair.one.release_xfer_handle(handle)


def mixed():
    """One agent's bytes go over UCX, the other's do not: they refuse each other."""
    from nixl._api import nixl_agent, nixl_agent_config

    one = nixl_agent("one", nixl_agent_config(backends=["KVFERRY"]))
    del os.environ["KVFERRY_FAULTS"]
    two = nixl_agent("two", nixl_agent_config(backends=["KVFERRY"]))
    for a, b in ((one, two), (two, one)):
        try:
            a.add_remote_agent(b.get_agent_metadata())
        except Exception as err:
            print(type(err).__name__)
        else:
            sys.exit("they have taken each other")


def child(what, **environment):
    run = subprocess.run([sys.executable, __file__, *sys.argv[1:3], what], env={**os.environ, **environment}, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def main(folder, files, what=""):
    os.environ["NIXL_PLUGIN_DIR"] = folder
    if what == "judged":
        return judged(Pair())
    if what == "mixed":
        return mixed()
    if what == "plain":
        return Pair()
    for rails in ("tcp/lo", "cma"):
        whole(Pair(rails=rails))
    log, schedule = os.path.join(files, "log.jsonl"), os.path.join(files, "schedule.json")
    with open(schedule, "w") as f:
        faults = [{"fault": "flip", "bytes": 64, "from": 1}, {"fault": "repeat", "count": 0}]
        json.dump({"backend": "UCX", "log": log, "faults": faults}, f)
    status, text = child("judged", KVFERRY_FAULTS=schedule, UCX_TLS="tcp")
    assert status == 0, (status, text)
    with open(log) as f:
        seen = [json.loads(line)["fault"] for line in f]
    assert sorted(seen) == ["flip"] + 3 * ["repeat"], seen
    status, text = child("mixed", KVFERRY_FAULTS=schedule, UCX_TLS="tcp")
    assert status == 0 and "does not move its bytes over UCX" in text, (status, text)
    with open(schedule, "w") as f:
        f.write('{"log": "x", "faults": [{"fault": "flop"}]}')
    status, text = child("plain", KVFERRY_FAULTS=schedule)
    assert status != 0 and 'faults[0].fault: "flop": use one of' in text, text
    # A package that says that it is another NIXL: links to all of this one, but for the name of its folder of metadata.
    import nixl_cu13

    site, other = os.path.dirname(os.path.dirname(nixl_cu13.__file__)), os.path.join(files, "site")
    os.mkdir(other)
    for name in ("nixl", "nixl_meta_utils.py", "nixl_cu13.libs"):
        os.symlink(os.path.join(site, name), os.path.join(other, name))
    for name in ("nixl_cu13", ".nixl_cu13.mesonpy.libs"):  # code knows where it lies
        subprocess.run(["cp", "-r", os.path.join(site, name), other], check=True)
    os.mkdir(os.path.join(other, "nixl_cu13-9.9.9.dist-info"))
    status, text = child("plain", PYTHONPATH=other)
    assert status != 0 and "is NIXL 9.9.9: install nixl==1.5.1" in text, text
    status, text = child("plain", PYTHONPATH=other, KVFERRY_NIXL_VERSION="9.9.9", KVFERRY_RAILS="tcp/lo")
    assert status == 0, text


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # UCX's libraries crash in an orderly exit, without the plugin too
