"""KV on a GPU: the connector's workers with one that is as slow as it may be (fakegpu.py), and the library between them."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import pathlib
import random
import sys
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))

try:
    import torch

    import fakegpu

    STREAM, EVENT = torch.cuda.Stream, torch.cuda.Event
except ImportError:
    torch = None

import test_vllm_worker
from test_vllm_worker import BLOCKS, LAYERS, PAGE, PROMPT

import kvferry
from kvferry.vllm import layout
from kvferry.vllm.config import ConfigError
from kvferry.vllm.device import Staged
from kvferry.vllm.holds import Hold
from kvferry.vllm.memory import Buffer
from kvferry.vllm.pulls import Pull
from kvferry.vllm.pushes import Over
from kvferry.vllm.receives import Receive
from kvferry.vllm.scheduler import Chunk, Step

HEAD = 4096
"""Where KV begins in its allocation on the GPU."""


def kv(made, block, layer):
    """What vLLM computes of a block of a layer the time that is called `made`."""
    return random.Random(f"{made} {block} {layer}").randbytes(PAGE)


class Side(test_vllm_worker.Side):
    """A worker with KV on a GPU, whose memory is `memory`."""

    def __init__(self, test, name, **config):
        self.gpu, self.test, self.mode = test.gpu, test, config.get("gpu", "staged")
        super().__init__(test, name, **config)
        self.device = self.worker.device
        if self.mode == "staged":
            self.device.mirror.random_()  # it may be where that of another test was

    def buffer(self):
        length = LAYERS * BLOCKS * PAGE
        self.descriptor = os.memfd_create("gpu", os.MFD_ALLOW_SEALING)
        self.test.addCleanup(os.close, self.descriptor)
        os.truncate(self.descriptor, HEAD + length)
        self.memory = memoryview(mmap.mmap(self.descriptor, 0))[HEAD:]
        self.memory[:] = os.urandom(length)
        buffer = torch.frombuffer(self.memory, dtype=torch.float16)
        if self.mode == "direct":
            self.test.driver.allocations[buffer.data_ptr() - HEAD] = HEAD + length, self.descriptor
        tensors = {f"l{k}": buffer[k * BLOCKS * PAGE // 2 :].as_strided((BLOCKS, 2, 25, 10), (500, 250, 10, 1)).as_subclass(fakegpu.Tensor) for k in range(LAYERS)}
        return Buffer.of(tensors, BLOCKS, self.mode)

    def compute(self, made, blocks, layers=range(LAYERS)):
        """vLLM starts its kernels."""

        def kernel(layer, block):
            at = (layer * BLOCKS + block) * PAGE
            self.memory[at : at + PAGE] = kv(made, block, layer)

        for layer in layers:
            for block in blocks:
                self.gpu.compute.put(lambda layer=layer, block=block: kernel(layer, block))

    def prefill(self, made, blocks, *chunks):
        """A step of vLLM's that computes blocks, of these chunks. When it is over, the next one overwrites them on the GPU."""
        step = Step(chunks=list(chunks))
        self.worker.before(step)
        for layer in range(LAYERS):
            self.compute(made, blocks, [layer])
            self.worker.computed(step, [f"l{layer}"])
        self.step(step)

    def has(self, made, ours, theirs):
        """Whether the GPU has in blocks of ours what was computed in theirs."""
        return all(self.block(o) == [kv(made, t, layer) for layer in range(LAYERS)] for o, t in zip(ours, theirs))


class Transfers:
    """What is tried with KV of either kind."""

    mode: str

    def setUp(self):
        self.gpu = fakegpu.GPU(self)

    def sides(self, **config):
        config = {"handoff": "layerwise", "timeout": 20.0, "gpu": self.mode, **config}
        self.p, self.d = Side(self, "P", **config), Side(self, "D", **config)

    until = test_vllm_worker.TestWorkers.until
    pull = test_vllm_worker.TestWorkers.pull
    receive = test_vllm_worker.TestWorkers.receive
    chunk = test_vllm_worker.TestWorkers.chunk

    def steps_of_d(self, done, what, busy=False):
        """D goes on alone: idle, or with other prompts to compute."""
        deadline = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), deadline, f"a minute, and not {what}")
            self.d.step(Step(idle=not busy))

    def held(self):
        """P has computed a prompt in two chunks and answered it."""
        self.p.prefill("a", [7, 6], Chunk("p", "", 0, 24, 40, [7, 6]))
        self.p.prefill("a", [6, 2], Chunk("p", "", 24, 40, 40, [7, 6, 2]))
        self.p.step(Step(holds=[Hold(1, "p")]))

    def pulled(self, made="a", **more):
        """D takes what is held, and has nothing else of it."""
        others = [self.d.block(n) for n in range(BLOCKS) if n not in (1, 2, 3)]
        self.d.step(Step(pulls=[self.pull(**more)]))
        self.until(lambda: self.p.sent and self.d.received, "pulled")
        self.assertTrue(self.d.has(made, [1, 2, 3], [7, 6, 2]))
        self.assertEqual((self.d.bad, [self.d.block(n) for n in range(BLOCKS) if n not in (1, 2, 3)]), (set(), others))

    def test_pull(self):
        self.sides()
        self.held()
        self.gpu.compute.synchronize()  # P's answer is there
        self.pulled()

    def test_push(self):
        """Layer by layer, in two chunks, D first and P first."""
        for first in (self.p_first, self.d_first):
            with self.subTest(first=first.__name__):
                self.sides()
                first()
                self.written()

    def written(self):
        self.until(lambda: self.p.sent and self.d.received, "written")
        self.assertTrue(self.d.has("a", [1, 2, 3], [7, 6, 2]))
        self.assertEqual(self.d.bad, set())

    def pushed(self):
        self.p.prefill("a", [7, 6], self.chunk(end=24, blocks=[7, 6]))
        self.p.prefill("a", [6, 2], self.chunk(begin=24))
        self.p.step(Step(over=[Over("p", "t", True, True)]))

    def p_first(self):
        self.pushed()
        self.d.step(Step(receives=[self.receive(checked=True)]))

    def d_first(self):
        self.d.step(Step(receives=[self.receive(checked=True)]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.pushed()

    def test_ready(self):
        """Layers are there when the GPU says so, not when vLLM has started them, and each is written then."""
        self.sides()
        ready, there = self.p.worker.pusher.ready, []

        def checked(now, chunks, layers):
            for layer in layers:
                there.append((layer, self.registered(layer, 7) == kv("a", 7, layer)))
            ready(now, chunks, layers)

        self.p.worker.pusher.ready = checked
        step = Step(chunks=[self.chunk()])
        for layer in range(LAYERS):
            self.p.compute("a", [7, 6, 2], [layer])
            self.p.worker.computed(step, [f"l{layer}"])
        self.assertEqual(there, [])
        self.p.device.saving[0][0].synchronize()
        self.p.worker.computed(step, ["not a layer"])
        self.assertEqual(there, [(0, True)])
        self.p.worker.computed(step)
        self.assertEqual(there, [(layer, True) for layer in range(LAYERS)])

    def registered(self, layer, block):
        """What P's peers have of a block."""
        at = self.p.device.address + (layer * BLOCKS + block) * PAGE
        return bytes((ctypes.c_char * PAGE).from_address(at))

    def test_silent(self):
        """P has ended: D's GPU keeps what it had."""
        self.sides(timeout=0.2)
        before = bytes(self.d.memory)
        self.p.worker.close()
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.d.step(Step(pulls=[self.pull()], receives=[self.receive(request="e", blocks=[5])]))
            self.steps_of_d(lambda: self.d.received == {"d", "e"}, "over")
        self.assertEqual((self.d.bad, bytes(self.d.memory) == before), ({1, 2, 3, 5}, True))

    def test_abort(self):
        self.sides()
        for hold in range(1, 30):
            self.p.step(Step(holds=[Hold(hold, f"p{hold}")]))
            self.d.step(Step(pulls=[self.pull(hold=hold)]), over=["d"] if hold % 2 else [])
            self.d.step(over=["d"])
            self.until(lambda: f"p{hold}" in self.p.sent and "d" in self.d.received, "released")
            self.d.received.clear()
        self.assertEqual((self.d.bad, self.d.worker.ledger.transfers, list(self.d.device.landing)), (set(), {}, []))

    def test_preempted(self):
        """P computes a prompt again in other blocks, with a batch of the first chunk under way."""
        self.sides()
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.p.prefill("a", [4, 5], self.chunk(end=32, blocks=[4, 5]))
        self.p.worker.before(Step(preempted=["p"]))
        self.assertEqual(self.p.worker.pusher.pushes.reading("p"), set())
        self.p.prefill("b", [7, 6, 2], self.chunk())
        self.p.step(Step(over=[Over("p", "t", True, True)]))
        self.until(lambda: self.p.sent and self.d.received, "written")
        self.assertTrue(self.d.has("b", [1, 2, 3], [7, 6, 2]))

    def test_fence(self):
        """D has closed the memory to P, which writes on: nothing changes there. Then it is open again."""
        self.sides()
        before = bytes(self.d.memory)
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.d.worker.memory.fence(self.p.peer.advertisement)
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.pushed()
            self.until(lambda: self.p.sent and self.d.received, "over")
        self.assertEqual((self.d.bad, bytes(self.d.memory) == before), ({1, 2, 3}, True))
        self.p.prefill("b", [7, 6, 2], Chunk("q", "u", 0, 40, 40, [7, 6, 2], PROMPT))
        self.p.step(Step(over=[Over("q", "u", True, True)]))
        self.d.step(Step(receives=[Receive("e", "u", [self.p.peer], [4, 5, 6], 0, 40, prompt=PROMPT)]))
        self.until(lambda: "q" in self.p.sent and "e" in self.d.received, "written")
        self.assertTrue(self.d.has("b", [4, 5, 6], [7, 6, 2]))


SKIPPED = unittest.skipIf(torch is None or test_vllm_worker.numpy is None, "SKIPPED: no torch or no numpy: KV on a GPU is not tried")


@SKIPPED
class TestStaged(Transfers, unittest.TestCase):
    mode = "staged"

    def overwrite(self):
        """The GPU has done what it was told, and then overwrites all blocks of P for others."""
        self.p.compute("later", range(BLOCKS))
        self.gpu.compute.synchronize()

    def test_overwritten(self):
        """The mirror has what was computed when P's step is over, and the GPU may go on."""
        for config in ({}, {"checksums": True}, {"handoff": "pull"}, {"rails": "cma"}):
            with self.subTest(**config):
                self.sides(**config)
                self.held()
                self.overwrite()
                self.pulled(checked=3)
                self.assertEqual(self.d.parts["d"].kv_blocks_checked, 3 if config.get("checksums") else 0)

    def test_push_checksums(self):
        for first in (self.p_first, self.d_first):
            with self.subTest(first=first.__name__):
                self.sides(checksums=True)
                first()
                self.written()
                self.assertEqual(self.d.parts["d"].kv_blocks_checked, 3)

    def test_push_overwritten(self):
        """D comes when P has computed other things in the place of what was preempted or freed: of that nothing is in the mirror."""
        self.sides()
        self.pushed()
        self.overwrite()
        self.d.step(Step(receives=[self.receive()]))
        self.written()

    def test_prefix_cached(self):
        """Two blocks were computed for a request that is not handed over."""
        self.sides(checksums=True)
        self.p.prefill("a", [7, 6])
        self.assertNotEqual(self.registered(0, 7), kv("a", 7, 0))
        self.p.prefill("a", [2], Chunk("p", "", 0, 40, 40, [7, 6, 2]))
        self.p.step(Step(holds=[Hold(1, "p")]))
        self.overwrite()
        self.pulled(checked=3)

    def test_landing(self):
        """A step that computes does not wait for D's copy, and vLLM has the blocks when it is over, not when it has begun. An idle one waits."""
        self.sides()
        self.held()
        before = bytes(self.d.memory)
        self.d.step(Step(pulls=[self.pull()]))
        self.steps_of_d(lambda: self.d.device.landing or self.d.received, "read", busy=True)
        for _ in range(5):
            self.d.step(Step())
        self.assertEqual((self.d.received, bytes(self.d.memory) == before), (set(), True))
        self.d.step(Step(idle=True))
        self.assertEqual((self.d.received, self.d.has("a", [1, 2, 3], [7, 6, 2])), ({"d"}, True))

    def test_aborted_landing(self):
        """vLLM has the blocks of an aborted request back when nothing is copied to them any more."""
        self.sides()
        self.held()
        self.d.step(Step(pulls=[self.pull()]))
        self.steps_of_d(lambda: self.d.device.landing, "read", busy=True)
        self.d.step(Step(), over=["d"])
        self.assertEqual(self.d.received, set())
        self.d.device.stream.synchronize()
        self.d.step(Step())
        self.assertEqual((self.d.received, self.d.bad, self.d.worker.ledger.transfers), ({"d"}, set(), {}))

    def test_lease(self):
        """P has freed the blocks before D has read them: D's GPU has nothing of what came."""
        self.sides(lease=0.01)
        self.held()
        with self.assertLogs("vllm.kvferry", "WARNING"):
            self.until(lambda: self.p.sent, "freed")
        before = bytes(self.d.memory)
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.d.step(Step(pulls=[self.pull()]))
            self.until(lambda: self.d.received, "over")
        self.assertIn("lease had ended", logged.output[0])
        self.assertEqual((self.d.bad, bytes(self.d.memory) == before), ({1, 2, 3}, True))

    def test_half(self):
        """P ends a request of which D has a chunk: D's GPU has nothing of it."""
        self.sides()
        before = bytes(self.d.memory)
        self.d.step(Step(receives=[self.receive()]))
        self.until(lambda: self.p.worker.pusher.pushes.wants, "wanted")
        self.p.prefill("a", [7, 6], self.chunk(end=32, blocks=[7, 6]))
        self.until(lambda: not self.p.worker.pusher.writing, "written")
        self.p.step(Step(over=[Over("p", "t", False, False)]))
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.until(lambda: self.d.received, "over")
        self.assertEqual((self.d.bad, bytes(self.d.memory) == before), ({1, 2, 3}, True))

    def test_flipped(self):
        """A byte changes between P's checksum and D: that block does not land, the others do."""
        self.sides(checksums=True)
        self.held()
        self.p.device.mirror[BLOCKS * PAGE + 6 * PAGE + 5] ^= 1
        before = self.d.block(2)
        with self.assertLogs("vllm.kvferry", "ERROR"):
            self.d.step(Step(pulls=[self.pull(checked=3)]))
            self.until(lambda: self.d.received, "pulled")
        self.assertEqual((self.d.bad, self.d.block(2) == before, self.d.has("a", [1, 3], [7, 2])), ({2}, True, True))

    def test_copies(self):
        """Blocks side by side are one copy a layer, and each one where there is a gap behind it."""
        for stride, want in ((100, 2), (120, 5)):
            memory = torch.zeros(2000, dtype=torch.uint8).as_subclass(fakegpu.Tensor)
            staged = Staged(memory, [layout.Layer("l0", 40, stride, 100), layout.Layer("l1", 1040, stride, 100)])
            before = self.gpu.copies
            memory.as_subclass(torch.Tensor).random_(1, 256)
            staged.mirror.zero_()
            staged.save([1], [4, 3, 7, 0, 4])
            self.assertEqual((len(list(staged.saved(wait=True))), self.gpu.copies - before), (1, 4 if stride > 100 else 3))
            copied = torch.zeros(2000, dtype=torch.bool)
            for block in (0, 3, 4, 7):
                copied[1040 + stride * block : 1140 + stride * block] = True
            self.assertTrue(torch.equal(torch.where(copied, memory.as_subclass(torch.Tensor), 0), staged.mirror))

    def test_registered(self):
        """As much as the KV is pinned, near the GPU, until the copies are over and the engine is closed."""
        with unittest.mock.patch.object(kvferry.Engine, "register", autospec=True, side_effect=kvferry.Engine.register) as register:
            self.sides()
        places = [(call.args[1], call.args[2], call.kwargs["location"]) for call in register.mock_calls if call.kwargs.get("name") == "kv"]
        length = LAYERS * BLOCKS * PAGE
        self.assertEqual(places, [(side.device.address, length, "cuda:0") for side in (self.p, self.d)])
        self.assertEqual(self.gpu.pinned, {side.device.address: length for side in (self.p, self.d)})
        self.held()
        self.d.step(Step(pulls=[self.pull()]))
        self.steps_of_d(lambda: self.d.device.landing, "read", busy=True)
        unpin, when = self.gpu.cudaHostUnregister, []
        self.gpu.cudaHostUnregister = lambda address: when.append(len(self.d.device.stream.queue)) or unpin(address)
        self.d.worker.close()
        self.assertEqual((when, list(self.gpu.pinned)), ([0], [self.p.device.address]))

    def test_no_memory(self):
        memory = torch.zeros(2_000_000, dtype=torch.uint8).as_subclass(fakegpu.Tensor)
        text = r'gpu: "staged" pins 0.0 GB of host memory, as much as the KV has on cuda:0, and cannot have it: {}: give vLLM more memory, or less KV \(--kv-cache-memory-bytes\), or use "direct"'
        self.gpu.pins = 1_000_000
        with self.assertRaisesRegex(ConfigError, text.format("cudaHostRegister: error 2")):
            Staged(memory, [])
        with unittest.mock.patch("torch.empty", side_effect=RuntimeError("not enough memory")), self.assertRaisesRegex(ConfigError, text.format("not enough memory")):
            Staged(memory, [])

    def test_torch(self):
        """What the GPU of these tests has torch has too."""
        for made, real, own in ((fakegpu.Stream, STREAM, ["put", "one"]), (fakegpu.Event, EVENT, [])):
            self.assertEqual([name for name in vars(made) if not name.startswith("_") and not hasattr(real, name)], own)


@SKIPPED
class TestDirect(Transfers, unittest.TestCase):
    """GPU memory by its descriptor. That of a memfd stands for a dma-buf, which TCP does not move."""

    mode = "direct"

    def setUp(self):
        super().setUp()
        self.driver = fakegpu.Driver(self)
        register = kvferry.Engine.register_descriptor

        def memfd(engine, descriptor, address, length, *, dmabuf, location, **options):
            self.assertEqual((dmabuf, location), (True, "cuda:0"))
            return register(engine, descriptor, address, length, **options)

        self.patch = unittest.mock.patch.object(kvferry.Engine, "register_descriptor", memfd)
        self.patch.start()
        self.addCleanup(self.patch.stop)

    def test_closed(self):
        """The driver's descriptors are closed when the library has them."""
        with unittest.mock.patch("os.close", wraps=os.close) as close:
            self.sides()
        self.assertEqual([call.args[0] for call in close.mock_calls], self.driver.given)
        self.assertEqual(len(self.driver.given), 2)

    def test_refused(self):
        """A rail that is none over RDMA, a driver that cannot, and none at all."""
        self.patch.stop()
        with self.assertRaisesRegex(ConfigError, 'gpu: "direct" needs memory of cuda:0 that a NIC can reach: .*tcp.*: use "staged"'):
            self.sides()
        self.driver.errors = 0, 801
        with self.assertRaisesRegex(ConfigError, "cuMemGetHandleForAddressRange: error 801"):
            self.sides()
        self.driver.errors = 201, 801
        with self.assertRaisesRegex(ConfigError, "cuMemGetAddressRange: error 201"):
            self.sides()
        self.driver.there = False
        with self.assertRaisesRegex(ConfigError, "libcuda.so.1: cannot open shared object file"):
            self.sides()
        self.patch.start()


@unittest.skipUnless(importlib.util.find_spec("vllm"), "SKIPPED: no vLLM: what its connector refuses is not tried")
class TestConnector(unittest.TestCase):
    def test_microbatches(self):
        """Layerwise would write a layer of which a half is computed."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        from kvferry.vllm import KvferryConnector

        made = types.SimpleNamespace
        for handoff, microbatches in (("layerwise", True), ("layerwise", False), ("pull", True)):
            transfer = made(kv_connector_extra_config={"rails": "cma", "handoff": handoff, "bootstrap": "127.0.0.1:8998"}, kv_role="kv_both", engine_id="e")
            parallel = made(pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, use_ubatching=microbatches, data_parallel_index=3)
            config = made(kv_transfer_config=transfer, parallel_config=parallel, cache_config=made(block_size=16))
            kv_cache = made(kv_cache_groups=[made(kv_cache_spec=None)])
            if handoff == "layerwise" and microbatches:
                with self.assertRaisesRegex(NotImplementedError, "leave --enable-dbo and --ubatch-size out, or use pull"):
                    KvferryConnector(config, KVConnectorRole.SCHEDULER, kv_cache)
            else:
                connector = KvferryConnector(config, KVConnectorRole.SCHEDULER, kv_cache)
                self.assertEqual(connector._scheduler.config.bootstrap, "127.0.0.1:9001")  # of a data-parallel rank
                connector.shutdown()


if __name__ == "__main__":
    unittest.main()
