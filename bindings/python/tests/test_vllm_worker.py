"""The connector's workers, P and D in one process, with the library between them and without vLLM."""

from __future__ import annotations

import ctypes
import os
import random
import time
import unittest
import unittest.mock

try:
    import numpy
except ImportError:
    numpy = None

import kvferry
from kvferry.vllm import layout, stats
from kvferry.vllm.config import Config
from kvferry.vllm.holds import Hold
from kvferry.vllm.memory import Buffer
from kvferry.vllm.pulls import Peer, Pull
from kvferry.vllm.pushes import Over
from kvferry.vllm.receives import Receive
from kvferry.vllm.scheduler import Chunk, Step
from kvferry.vllm.worker import Worker

LAYERS, BLOCKS, PAGE, TOKENS = 3, 10, 1000, 16
PROMPT = {"tokens": "its digest"}


class Side:
    """A worker, and what it has told vLLM."""

    def __init__(self, test, name, rails="127.0.0.1:0", blocks=BLOCKS, page=PAGE, **config):
        self.worker = Worker(Config(rails, **config), name, 0, TOKENS)
        test.addCleanup(self.worker.close)
        self.blocks, self.page = blocks, page
        self.worker.register(self.buffer(), {"weights": "w"})
        own = self.worker.own
        self.peer = Peer(own.advertisement, own.planes)
        self.sent, self.received, self.bad, self.parts, self.counts = set(), set(), set(), {}, stats.empty()

    def buffer(self):
        self.memory = bytearray(os.urandom(LAYERS * self.blocks * self.page))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        layers = [layout.Layer(f"l{k}", k * self.blocks * self.page, self.page, self.page) for k in range(LAYERS)]
        return Buffer(address, len(self.memory), layers, self.blocks)

    def block(self, n):
        return [bytes(self.memory[at : at + self.page]) for at in range(n * self.page, len(self.memory), self.blocks * self.page)]

    def step(self, step=None, over=()):
        """A step of vLLM's that computes nothing, or all of its chunks at once."""
        step = step or Step(idle=True)
        self.worker.before(step)
        self.worker.computed(step)
        self.worker.start(step)
        finished = self.worker.finish(step, over)
        self.sent |= finished.sent
        self.received |= finished.received
        self.bad |= finished.bad
        self.parts.update(finished.parts)
        stats.add(self.counts, self.worker.ledger.counts() or {})


@unittest.skipIf(numpy is None, "SKIPPED: no numpy: the connector's transfers are not tried")
class TestWorkers(unittest.TestCase):
    def sides(self, **config):
        config = {"handoff": "layerwise", "timeout": 20.0, **config}
        self.p, self.d = Side(self, "P", **config), Side(self, "D", **config)

    def until(self, done, what):
        deadline = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), deadline, f"a minute, and not {what}")
            self.p.step()
            self.d.step()

    def pull(self, ours=(1, 2, 3), theirs=(7, 6, 2), hold=1, checked=0):
        return Pull("d", hold, [self.p.peer], list(ours), list(theirs), checked)

    def same(self, ours, theirs):
        return all(self.d.block(o) == self.p.block(t) for o, t in zip(ours, theirs))

    def test_pull(self):
        self.sides()
        other = self.d.block(4)
        self.p.step(Step(holds=[Hold(1, "p")]))
        self.d.step(Step(pulls=[self.pull()]))
        self.until(lambda: self.p.sent and self.d.received, "pulled")
        self.assertEqual((self.p.sent, self.d.received, self.d.bad), ({"p"}, {"d"}, set()))
        self.assertTrue(self.same([1, 2, 3], [7, 6, 2]))
        self.assertEqual(self.d.block(4), other)
        self.assertEqual(self.d.parts["d"].kv_bytes, 3 * LAYERS * PAGE)
        self.assertEqual((self.d.counts["bytes_transferred"], self.d.counts["num_failed_transfers"]), ([3 * LAYERS * PAGE], 0))
        self.d.step(Step(pulls=[self.pull(ours=[], theirs=[], hold=2)]))  # all of it in the prefix cache
        self.p.step(Step(holds=[Hold(2, "q")]))
        self.until(lambda: "q" in self.p.sent, "released")
        self.assertEqual(self.d.received, {"d"})

    def test_one_step(self):
        """A step with nothing to compute waits for a pull's end: it would be the next step's."""
        self.sides()
        with unittest.mock.patch.multiple("kvferry.vllm.worker", IDLE=0, READING=60):
            self.d.step(Step(idle=True, pulls=[self.pull()]))
        self.assertEqual((self.d.received, self.d.bad), ({"d"}, set()))

    def test_lease(self):
        """P has freed the blocks while D was away: what D then reads is not KV of this prompt."""
        self.sides(lease=0.01)
        self.p.step(Step(holds=[Hold(1, "p")]))
        with self.assertLogs("vllm.kvferry", "WARNING"):
            self.until(lambda: self.p.sent, "freed")
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.d.step(Step(pulls=[self.pull()]))
            self.until(lambda: self.d.received and self.p.counts["num_notifications_after_expiry"], "over")
        self.assertIn("lease had ended", logged.output[0])
        self.assertEqual((self.d.bad, self.p.counts["num_kv_expired_reqs"], self.d.counts["num_failed_transfers"]), ({1, 2, 3}, 1, 1))

    def test_checksums(self):
        self.sides(checksums=True)
        self.p.step(Step(chunks=[Chunk("p", "", 0, 40, 40, [7, 6, 2])], holds=[Hold(1, "p")]))
        self.p.memory[BLOCKS * PAGE + 6 * PAGE + 5] ^= 1
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.d.step(Step(pulls=[self.pull(checked=3)]))
            self.until(lambda: self.d.received, "pulled")
        self.assertEqual(self.d.bad, {2})
        self.assertEqual((self.d.parts["d"].kv_blocks_checked, self.d.parts["d"].kv_blocks_bad, self.d.counts["num_blocks_bad"]), (3, 1, 1))

    def test_answered(self):
        """P's answer goes on in the prompt's last block: that one is not compared, the others are."""
        self.sides(checksums=True)
        self.p.step(Step(chunks=[Chunk("p", "", 0, 40, 40, [7, 6, 2])], holds=[Hold(1, "p")]))
        self.p.memory[2 * PAGE + 600] ^= 1
        self.d.step(Step(pulls=[self.pull(checked=2)]))
        self.until(lambda: self.d.received, "pulled")
        self.assertEqual((self.d.bad, self.d.parts["d"].kv_blocks_checked), (set(), 2))

    def test_gone(self):
        """P has ended: D's blocks fail when the time is up."""
        self.sides(timeout=0.2)
        self.p.worker.close()
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.d.step(Step(pulls=[self.pull()], receives=[self.receive(request="e", blocks=[5])]))
            while self.d.received != {"d", "e"}:
                self.d.step()
        self.assertEqual(self.d.bad, {1, 2, 3, 5})
        self.assertEqual(self.d.worker.memory.windows, {})  # nobody writes any more

    def test_silent(self):
        """P has ended, and D does not wait as long as a transfer may take."""
        self.sides(timeout=3600.0)
        self.p.worker.close()
        with self.assertLogs("vllm.kvferry", "ERROR"), unittest.mock.patch("kvferry.vllm.puller.SAY", 0.2):
            self.d.step(Step(pulls=[self.pull()]))
            while not self.d.received:
                self.d.step()
        self.assertEqual((self.d.bad, self.d.worker.puller.pulls.states), ({1, 2, 3}, {}))

    def test_push_silent(self):
        """P ends when it knows where to write: D does not wait as long as a transfer may take, and nobody can write any more."""
        self.sides(timeout=3600.0)
        self.d.step(Step(receives=[self.receive(request=name) for name in "de"]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.p.worker.close()
        with self.assertLogs("vllm.kvferry", "ERROR") as logged, unittest.mock.patch.multiple("kvferry.vllm.receiver", SAY=0.2, HEARD=0.1):
            while self.d.received != {"d", "e"}:
                self.d.step()
        self.assertIn("P does not answer", logged.output[0])
        self.assertEqual((self.d.bad, self.d.worker.memory.windows, self.d.worker.receiver.asking), ({1, 2, 3}, {}, set()))

    def test_abort(self):
        self.sides()
        for hold in range(1, 50):
            self.p.step(Step(holds=[Hold(hold, f"p{hold}")]))
            self.d.step(Step(pulls=[self.pull(hold=hold)]), over=["d"] if hold % 2 else [])
            self.d.step(over=["d"])
            self.until(lambda: f"p{hold}" in self.p.sent and "d" in self.d.received, "released")
            self.d.received.clear()
        self.assertEqual(self.d.bad, set())
        self.assertEqual((self.d.worker.puller.pulls.states, self.d.worker.ledger.transfers), ({}, {}))

    def receive(self, request="d", blocks=(1, 2, 3), **more):
        return Receive(request, "t", [self.p.peer], list(blocks), 0, 40, prompt=PROMPT, **more)

    def chunk(self, begin=0, end=40, blocks=(7, 6, 2)):
        return Chunk("p", "t", begin, end, 40, list(blocks), PROMPT)

    def test_push(self):
        """By layers, in two chunks, D first and P first, with checksums."""
        for first in (self.p_first, self.d_first):
            self.sides(checksums=True)
            first()
            self.until(lambda: self.p.sent and self.d.received, "written")
            self.assertEqual((self.p.sent, self.d.received, self.d.bad), ({"p"}, {"d"}, set()))
            self.assertTrue(self.same([1, 2, 3], [7, 6, 2]))
            self.assertEqual(self.d.parts["d"].kv_blocks_checked, 3)

    def p_first(self):
        self.p.step(Step(chunks=[self.chunk()]))
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        self.d.step(Step(receives=[self.receive(checked=True)]))

    def d_first(self):
        self.d.step(Step(receives=[self.receive(checked=True)]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        for chunk in (self.chunk(end=24, blocks=[7, 6]), self.chunk(begin=24)):
            step = Step(chunks=[chunk])
            for k in range(LAYERS):
                self.p.worker.computed(step, [f"l{k}"])
            self.p.step(step)
        self.p.step(Step(over=[Over("p", "t", True, True)]))

    def test_push_scattered(self):
        """D's blocks are in more runs than a message has room for."""
        self.sides(blocks=12000, page=16)
        ours, theirs = random.Random(1).sample(range(12000), 10000), range(10000)
        self.p.step(Step(chunks=[Chunk("p", "t", 0, 160000, 160000, list(theirs), PROMPT)]))
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        self.d.step(Step(receives=[Receive("d", "t", [self.p.peer], ours, 0, 160000, prompt=PROMPT)]))
        self.until(lambda: self.p.sent and self.d.received, "written")
        self.assertEqual(self.d.bad, set())
        self.assertTrue(self.same(ours, theirs))
        self.assertEqual(self.p.worker.pusher.joined.parts, {})

    def test_push_flipped(self):
        """A byte changes between P's checksum and D."""
        self.sides(checksums=True)
        make = self.p.worker.memory.checksums.make

        def flipped(blocks):
            make(blocks)
            self.p.memory[BLOCKS * PAGE * 2 + 6 * PAGE] ^= 1

        self.p.worker.memory.checksums.make = flipped
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.p_first()
            self.until(lambda: self.d.received, "written")
        self.assertEqual(self.d.bad, {2})

    def test_push_preempted(self):
        self.sides()
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.p.step(Step(chunks=[self.chunk(end=32, blocks=[4, 5])]))
        step = Step(preempted=["p"])
        self.p.worker.before(step)
        self.assertEqual(self.p.worker.pusher.pushes.reading("p"), set())
        self.p.step(Step(chunks=[self.chunk()]))
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        self.until(lambda: self.p.sent and self.d.received, "written")
        self.assertTrue(self.same([1, 2, 3], [7, 6, 2]))

    def test_push_preempted_hanging(self):
        """D hangs: the step of a preempted request does not wait as long as a transfer may take, and nothing reads the blocks after it."""
        self.sides()
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.d.worker.close()
        self.p.step(Step(chunks=[self.chunk(end=32, blocks=[4, 5])]))
        with unittest.mock.patch("kvferry.vllm.pusher.PREEMPTED", 0.05):
            self.p.worker.before(Step(preempted=["p"]))
        pusher = self.p.worker.pusher
        self.assertEqual((pusher.pushes.reading("p"), pusher.writing), (set(), {}))
        self.assertIn("canceled", pusher.pushes.pushes["t"].ended)
        self.p.step(Step(chunks=[self.chunk()]))
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        self.assertEqual((self.p.sent, pusher.writing), ({"p"}, {}))

    def test_push_stopped(self):
        """D's request ends while P computes: D has its blocks back when P has said that it stops, P when its request is over."""
        self.sides()
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.p.step(Step(chunks=[self.chunk(end=32, blocks=[7, 6])]))
        self.d.step(over=["d"])
        self.until(lambda: self.d.received, "stopped")
        before = bytes(self.d.memory)
        self.p.step(Step(chunks=[self.chunk(begin=32)]))
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        self.assertEqual((self.p.sent, self.d.bad, bytes(self.d.memory) == before), ({"p"}, set(), True))
        self.assertIn(self.p.peer.advertisement, self.d.worker.memory.windows)  # nobody else is disturbed

    def test_many(self):
        """Two P and two D, each with each, both ways at once."""
        ps = [Side(self, f"P{k}", timeout=20.0, handoff="layerwise") for k in range(2)]
        ds = [Side(self, f"D{k}", timeout=20.0, handoff="layerwise") for k in range(2)]
        for i, p in enumerate(ps):
            p.step(Step(holds=[Hold(1 + j, f"held{j}") for j in range(2)], chunks=[Chunk(f"p{j}", f"{i}{j}", 0, 32, 32, [2 * j, 2 * j + 1], PROMPT) for j in range(2)]))
            p.step(Step(over=[Over(f"p{j}", f"{i}{j}", True, True) for j in range(2)]))
        for j, d in enumerate(ds):
            pulls = [Pull(f"pull{i}", 1 + j, [p.peer], [i], [8 + j]) for i, p in enumerate(ps)]
            d.step(Step(pulls=pulls, receives=[Receive(f"push{i}", f"{i}{j}", [p.peer], [4 + 2 * i, 5 + 2 * i], 0, 32, prompt=PROMPT) for i, p in enumerate(ps)]))
        deadline = time.monotonic() + 60
        while any(len(d.received) < 4 for d in ds) or any(len(p.sent) < 4 for p in ps):
            self.assertLess(time.monotonic(), deadline, [d.received for d in ds] + [p.sent for p in ps])
            for side in ps + ds:
                side.step()
        for i, p in enumerate(ps):
            for j, d in enumerate(ds):
                got = [d.block(n) for n in (i, 4 + 2 * i, 5 + 2 * i)]
                self.assertEqual(got, [p.block(n) for n in (8 + j, 2 * j, 2 * j + 1)])

    def test_messages(self):
        """What nobody can read is logged, and does not end vLLM; what does not fit is refused."""
        self.sides()
        stranger = kvferry.Engine("127.0.0.1:0")
        self.addCleanup(stranger.close)
        target = stranger.connect(self.p.peer.advertisement.encode())
        no_text = [b'{"stop":%s,"token":1,"advertisement":%s,"answer":%s,"planes":[]}' % texts for texts in ((b"1", b'""', b'""'), (b'"t"', b"1", b'""'), (b'"t"', b'""', b"1"))]
        too_many = b'{"want":"t","token":1,"advertisement":"","answer":"","planes":[],"at":0,"of":9,"blocks":[[0,1000000000000,1]]}'
        negative = too_many.replace(b"[0,1000000000000,1]", b"[0,9,1],[0,2000000,1],[0,-2000000,1]")
        part = too_many.replace(b"[[0,1000000000000,1]]", b"[[0,1,1]]")
        endless = part.replace(b'"of":9', b'"of":1000000000000'), part.replace(b"[[0,1,1]]", b"[]"), part.replace(b'"at":0', b'"at":-1')
        no_key = b'{"release":1}', b'{"release":1,"key":-1}', b'{"release":"x","key":1}'
        messages = b"?", b"[1]", b"{}", b'{"want":1}', b'{"part":1}', b"[" * 50000, too_many, negative, *endless, *no_key, *no_text
        for data in messages:
            stranger.submit(target, kvferry.WRITE, [], message=data)
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.until(lambda: len(logged.output) == len(messages), "logged")
        self.assertEqual((self.p.worker.pusher.pushes.wants, self.p.worker.holds.early, self.p.worker.pusher.joined.parts), ({}, {}, {}))
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.d.step(Step(receives=[self.receive(blocks=[1, 2])]))
            self.until(lambda: self.d.received, "over")
        self.assertIn("D has other layers or blocks than P", logged.output[0])

    def test_counted_up(self):
        """A stranger ends no hold and no transfer of others by numbers that come next."""
        self.sides(lease=600.0)
        stranger = kvferry.Engine("127.0.0.1:0")
        self.addCleanup(stranger.close)
        p, d = (stranger.connect(side.peer.advertisement.encode()) for side in (self.p, self.d))
        self.p.step(Step(holds=[Hold(1, "p", 1 << 40)]))
        self.d.step(Step(receives=[self.receive()]))
        for n in range(5):
            stranger.submit(p, kvferry.WRITE, [], message=b'{"release":%d,"key":%d}' % (n, n))
            stranger.submit(d, kvferry.WRITE, [], message=b'{"part":%d,"index":0,"total":1}' % n)
        self.until(lambda: len(self.p.worker.holds.early) == 3, "heard")
        heard = []
        self.d.worker.receiver.hear = lambda now, message, hear=self.d.worker.receiver.hear: heard.append(message) or hear(now, message)
        stranger.submit(d, kvferry.WRITE, [], message=b'{"part":0,"index":0,"total":1}')
        self.until(lambda: heard, "heard")
        self.assertEqual((self.p.sent, self.d.received), (set(), set()))
        self.p.step(Step(chunks=[self.chunk()], holds=[Hold(2, "q", 1 << 41)]))
        self.d.step(Step(pulls=[Pull("e", 1, [self.p.peer], [4], [8], key=1 << 40), Pull("f", 2, [self.p.peer], [5], [9], key=1 << 41)]))
        self.until(lambda: self.p.sent >= {"p", "q"} and self.d.received == {"d", "e", "f"}, "taken")
        self.assertTrue(self.d.bad == set() and self.same([1, 2, 3, 4, 5], [7, 6, 2, 8, 9]))

    def test_patience(self):
        """D says how long it waits. P keeps what it wants for as long as its own settings have, at most."""
        self.sides(lease=30.0)
        own = self.d.worker.own
        for k, (timeout, kept) in enumerate(((5, 5), (1e15, 30), (float("nan"), 30), (-1, 30), (float("inf"), 30))):
            for blocks, of in (([[0, 3, 1]], 3), ([[0, 1, 1]], 3)):
                want = {"want": f"t{k}", "token": 10 * k + len(blocks[0]) + blocks[0][1], "advertisement": "a", "answer": "a", "planes": own.planes}
                self.p.worker.pusher.hear(100.0, {**want, "blocks": blocks, "at": 0, "of": of, "tokens": 40, "timeout": timeout})
            self.assertEqual(self.p.worker.pusher.pushes.wants[f"t{k}"][1], 100.0 + kept)
            self.assertEqual([parts.until for parts in self.p.worker.pusher.joined.parts.values()][-1], 100.0 + kept)

    def test_push_never(self):
        """P never gets the request: D's blocks fail by the timeout, before which P is told to stop."""
        self.sides(timeout=0.2)
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.d.step(Step(receives=[self.receive()]))
            self.until(lambda: self.d.received, "over")
        self.assertIn("not written all of it within 0.15 s", logged.output[0])
        self.assertEqual(self.d.bad, {1, 2, 3})

    def test_push_unsent(self):
        """What a bootstrap has said of a P is no advertisement: that transfer fails alone."""
        self.sides()
        with self.assertLogs("vllm.kvferry", "ERROR"):
            for k, advertisement in enumerate(("nonsense", "\ud800")):
                self.d.step(Step(receives=[Receive(f"r{k}", f"u{k}", [Peer(advertisement, self.p.peer.planes)], [4 + k], 0, 16)]))
            self.p_first()
            self.until(lambda: len(self.d.received) == 3, "over")
        self.assertEqual(self.d.bad, {4, 5})
        self.assertTrue(self.same([1, 2, 3], [7, 6, 2]))

    def test_push_nowhere(self):
        """A peer wants blocks at places that are none: it is told so, and P goes on."""
        self.sides()
        self.p.step(Step(chunks=[self.chunk()]))
        own = self.d.worker.own
        wanted = {"want": "t", "token": 1, "advertisement": own.advertisement, "answer": own.advertisement, "planes": own.planes, "blocks": [[1 << 70, 3, 1]], "at": 0, "of": 3, "tokens": 40}
        self.d.worker.batches.say(self.p.peer.advertisement, wanted, "t")
        heard = []
        self.d.worker.receiver.hear = lambda now, message: heard.append(message["error"])
        self.until(lambda: heard, "told")
        self.assertEqual(heard, ["D has other layers or blocks than P"])
        self.p.step(Step(over=[Over("p", "t", False, True)]))
        self.until(lambda: self.p.sent, "freed")

    def test_fence_waits_for_none(self):
        """D closes its memory to peers while a READ of its own hangs, the first time and when it was opened anew."""
        self.sides(timeout=20.0)
        memory = self.d.worker.memory
        self.p.worker.close()
        for k in range(2):
            memory.open(self.p.peer.advertisement, ())
            self.d.step(Step(pulls=[Pull(f"d{k}", 1, [self.p.peer], [1 + k], [1])]))
            memory.fence(self.p.peer.advertisement)
            self.assertFalse(self.d.worker.engine.wait(0), "the READ has ended")

    def test_fence_of_one(self):
        """A P ends in mid-transfer: another one's transfer goes on, and D's memory is open to it alone."""
        self.sides(timeout=3600.0)
        other = Side(self, "Q", timeout=20.0, handoff="layerwise")
        gone = self.receive(request="e", blocks=[4, 5, 6])
        self.d.step(Step(receives=[gone, Receive("d", "t", [other.peer], [1, 2, 3], 0, 40, prompt=PROMPT)]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.p.worker.close()
        with self.assertLogs("vllm.kvferry", "ERROR"), unittest.mock.patch.multiple("kvferry.vllm.receiver", SAY=0.2, HEARD=0.1):
            while not self.d.received:
                other.step()
                self.d.step()
        self.assertEqual((self.d.received, list(self.d.worker.memory.windows)), ({"e"}, [other.peer.advertisement]))
        other.step(Step(chunks=[self.chunk()]))
        while self.d.received != {"d", "e"}:
            other.step()
            self.d.step()
        self.assertEqual(self.d.bad, {4, 5, 6})
        self.assertEqual([self.d.block(n) for n in (1, 2, 3)], [other.block(n) for n in (7, 6, 2)])

    def test_windows(self):
        """So many peers are told of the memory at a time; those that write keep it."""
        self.sides()
        memory = self.d.worker.memory
        with unittest.mock.patch("kvferry.vllm.memory.WINDOWS", 2):
            for peer in "abc":
                memory.open(peer, "a")
            self.assertEqual(list(memory.windows), ["a", "c"])
            memory.open("d", "acd")
        self.assertEqual(list(memory.windows), ["a", "c", "d"])

    def test_push_fence(self):
        """P writes on although D has closed the memory: nothing changes there, and P has its blocks back."""
        self.sides()
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.d.worker.memory.fence(self.p.peer.advertisement)
        before = bytes(self.d.memory)
        self.p.step(Step(chunks=[self.chunk()]))
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.until(lambda: self.p.sent and self.d.received, "over")
        self.assertIn("P could not write it", logged.output[0])
        self.assertEqual(bytes(self.d.memory), before)
        self.d.step(Step(receives=[self.receive(request="e")]))  # the memory is open again
        self.assertIn(self.p.peer.advertisement, self.d.worker.memory.windows)


if __name__ == "__main__":
    unittest.main()
