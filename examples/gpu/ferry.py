"""Ferries a tensor from one process's GPU to another's: device to pinned host memory, there over the rails, host to device.

    python examples/gpu/ferry.py --rails tcp/lo --device cuda:0 --to cuda:1

Each round goes three ways: every step by itself; one step after the other; and in chunks, each of which is ferried
while others are copied. The bytes on the second GPU are compared each time. With --device cpu it runs without a GPU, and
shows that the script works and nothing else. See README.md.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import statistics
import subprocess
import sys
import time

import torch

import kvferry

PATIENCE = 120  # seconds, for whatever the other process does


class Side:
    """A tensor on a device, staging memory of the same size, and an engine that has that registered."""

    def __init__(self, device, rails, size, chunk, name):
        self.device, self.gpu = torch.device(device), device.startswith("cuda")
        if self.gpu:
            torch.cuda.set_device(self.device)
            self.stream = torch.cuda.Stream()
        self.tensor = torch.zeros(size, dtype=torch.uint8, device=self.device)
        self.host = torch.zeros(size, dtype=torch.uint8, pin_memory=self.gpu)
        self.chunks = [(at, min(chunk, size - at)) for at in range(0, size, chunk)]
        self.engine = kvferry.Engine(rails, name=name)
        # Pinned memory is host memory: by its address. The location has rails near the GPU preferred.
        self.segment = self.engine.register(self.host.data_ptr(), size, name="staging", location=device if self.gpu else None)
        self.inbox = []

    def describe(self):
        return torch.cuda.get_device_name(self.device) if self.gpu else "no GPU, the processor's memory"

    def copy(self, to, source, chunks):
        """Starts to copy chunks between device and staging memory, and returns for each what waits for it."""
        events = []
        for at, length in chunks:
            if not self.gpu:
                to[at : at + length].copy_(source[at : at + length])
                events.append(lambda: None)
                continue
            with torch.cuda.stream(self.stream):
                to[at : at + length].copy_(source[at : at + length], non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            events.append(event.synchronize)
        return events

    def wait(self):
        """Waits until something has come, keeps messages, and returns the user_data of batches that have arrived."""
        if not self.engine.wait(PATIENCE):
            raise TimeoutError("nothing has come from the other process")
        done = self.engine.poll()
        for c in done:
            if c.error:
                raise c.error
        self.inbox += self.engine.receive()
        return [c.user_data for c in done]

    def receive(self):
        """The next message of the other process, as JSON."""
        while not self.inbox:
            self.wait()
        return json.loads(self.inbox.pop(0).data)

    def tell(self, target, **what):
        self.engine.submit(target, kvferry.WRITE, [], message=json.dumps(what).encode())

    def digest(self):
        host = self.tensor.cpu()
        return hashlib.sha256((ctypes.c_char * host.numel()).from_address(host.data_ptr())).hexdigest()


def serve(side):
    """The second process: copies to its device what has come, as it is told."""
    print(json.dumps({"advertisement": side.engine.advertise(side.segment).decode(), "device": side.describe()}), flush=True)
    peer = side.engine.connect(sys.stdin.readline().encode().strip())
    left = len(side.chunks)
    while True:
        m = side.receive()
        if m["do"] == "end":
            return
        if m["do"] == "compare":
            side.tell(peer, same=m["digest"] == side.digest())
            side.tensor.zero_()
            continue
        began = time.perf_counter()
        chunks = side.chunks if m["do"] == "all" else [side.chunks[m["chunk"]]]
        events = side.copy(side.tensor, side.host, chunks)
        left -= len(chunks)
        if left == 0:  # chunks come in any order, and the last event is behind all others
            events[-1]()
            side.tell(peer, seconds=time.perf_counter() - began)
            left = len(side.chunks)


def in_steps(side, peer):
    """Each step when the one before is done. Returns the seconds of each."""
    began = time.perf_counter()
    side.copy(side.host, side.tensor, side.chunks)[-1]()
    copied = time.perf_counter()
    side.engine.submit(peer, kvferry.WRITE, [kvferry.Range(side.segment.address, 0, side.segment.length)], timeout=PATIENCE, user_data=1)
    while 1 not in side.wait():
        pass
    ferried = time.perf_counter()
    side.tell(peer, do="all")
    seconds = side.receive()["seconds"]
    return {"device to host": copied - began, "ferry": ferried - copied, "host to device": seconds, "one after another": time.perf_counter() - began}


def in_chunks(side, peer):
    """A chunk is ferried when it is copied, and its message has it copied there while others are on their way."""
    began = time.perf_counter()
    for i, copied in enumerate(side.copy(side.host, side.tensor, side.chunks)):
        copied()
        at, length = side.chunks[i]
        message = json.dumps({"do": "chunk", "chunk": i}).encode()
        side.engine.submit(peer, kvferry.WRITE, [kvferry.Range(side.segment.address + at, at, length)], timeout=PATIENCE, message=message)
    side.receive()
    return {"pipelined": time.perf_counter() - began}


def measure(side, options):
    child = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--second"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        hello = json.loads(child.stdout.readline())
        child.stdin.write(side.engine.advertise(side.segment).decode() + "\n")
        child.stdin.flush()
        peer = side.engine.connect(hello["advertisement"].encode())
        seconds, same = {}, 0
        for n in range(options.rounds + 1):  # the first is not counted: connections are made, pages touched
            for way in (in_steps, in_chunks):
                side.tensor.random_(0, 256)
                if side.gpu:
                    torch.cuda.synchronize()
                for name, s in way(side, peer).items():
                    seconds.setdefault(name, []).append(s)
                side.tell(peer, do="compare", digest=side.digest())
                same += side.receive()["same"]
        side.tell(peer, do="end")
        child.wait(PATIENCE)
    finally:
        child.kill()
    print(f"torch {torch.__version__}, kvferry {kvferry.build()}, rails {options.rails}")
    print(f"from {options.device} ({side.describe()}) to {options.to} ({hello['device']})")
    print(f"{options.mib} MiB in chunks of {options.chunk_mib} MiB, medians of {options.rounds} rounds")
    rate = {name: (options.mib << 20) / statistics.median(s[1:]) / 1e9 for name, s in seconds.items()}
    for name, gb in rate.items():
        print(f"  {name:18}{gb:7.2f} GB/s")
    print(f"  overlap           {rate['pipelined'] / rate['one after another']:7.2f} times as fast in chunks")
    rounds = 2 * (options.rounds + 1)
    print(f"  the same bytes    {same:4} of {rounds} times")
    return same == rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda:0", help="of the first process: cuda:N, or cpu (default cuda:0)")
    parser.add_argument("--to", help="of the second process (default the first one's)")
    parser.add_argument("--rails", default="tcp/lo", help="as everywhere in kvferry (default tcp/lo)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the tensor")
    parser.add_argument("--chunk-mib", type=int, default=16, help="what is ferried at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.to = options.to or options.device
    device, name = (options.to, "second") if options.second else (options.device, "first")
    side = Side(device, options.rails, options.mib << 20, options.chunk_mib << 20, name)
    with side.engine:
        if options.second:
            serve(side)
        elif not measure(side, options):
            sys.exit("ferry.py: other bytes have arrived")


if __name__ == "__main__":
    main()
