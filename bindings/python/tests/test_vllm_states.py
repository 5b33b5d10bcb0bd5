"""The connector's states, without vLLM and without a transfer: what P holds, what D awaits, what the scheduler says of both."""

from __future__ import annotations

import http.server
import json
import threading
import types
import unittest
import unittest.mock

from kvferry.vllm import layout, pulls, report, stats
from kvferry.vllm.asked import Asked
from kvferry.vllm.checksums import Checksums
from kvferry.vllm.config import Config, ConfigError
from kvferry.vllm.holds import SLOTS, Hold, Holds
from kvferry.vllm.memory import Buffer
from kvferry.vllm.scheduler import Chunk, Rank, Scheduler


class TestConfig(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual(Config.of({"rails": "tcp/lo"}), Config("tcp/lo", "pull", "", 30.0, 60.0, False))
        self.assertEqual(Config.of({"rails": ["tcp/a", "tcp/b"], "lease": 5}).rails, "tcp/a,tcp/b")
        self.assertEqual(Config.of({"rails": "tcp/a, rdma/b", "gpu": "direct"}).gpu, "direct")

    def test_errors(self):
        for extra, text in (
            ({}, r'rails: is None: name the NICs to use, "tcp/eth0"'),
            ({"rails": "cma", "leese": 3}, "leese: there is no such field: use rails, handoff"),
            ({"rails": "cma", "handoff": "psuh"}, "handoff: is 'psuh': use pull"),
            ({"rails": "cma", "timeout": 0}, "timeout: is 0: give seconds"),
            ({"rails": "cma", "lease": "1"}, "lease: is '1': give seconds"),
            ({"rails": "cma", "checksums": 1}, "checksums: is 1: use true or false"),
            ({"rails": "cma", "gpu": "fast"}, "gpu: is 'fast': use staged or direct"),
            ({"rails": "cma", "allow": "10.0.0.1/24"}, "allow: is '10.0.0.1/24': .*has host bits set: give hosts or networks"),
            ({"rails": "cma", "allow": ["http://a"]}, "allow: is .*'http://a'"),
            ({"rails": "cma", "allow": 5}, "allow: is 5: .*give hosts or networks"),
            ({"rails": ["tcp/rdma0", "cma"], "gpu": "direct"}, "gpu: is \"direct\", and no rail of 'tcp/rdma0,cma' is over RDMA"),
            ({"rails": "rdma/mlx5_0", "gpu": "direct", "checksums": True}, 'checksums: is true, and with "gpu":"direct"'),
        ):
            with self.assertRaisesRegex(ConfigError, text):
                Config.of(extra)


    def test_allow(self):
        """Where a request may send the engine: to this machine, to the bootstrap that is configured, and to what is allowed."""
        config = Config.of({"rails": "cma", "handoff": "layerwise", "bootstrap": "10.0.0.1:8998", "allow": ["Proxy", "[fd00::1]:80", "10.1.0.0/16", ""]}, "kv_consumer")
        for url in (
            "http://127.0.0.1:5/a", "http://localhost", "https://[::1]:9", "http://127.9.9.9",
            "http://10.0.0.1:8998", "http://proxy:1/x", "https://PROXY", "http://[fd00::1]/", "http://10.1.2.3:4",
        ):  # fmt: skip
            self.assertEqual(config.refuses("report_url", url), "", url)
        self.assertIn("http://", Config.of({"rails": "cma", "bootstrap": ":8998"}).refuses("report_url", "http://:8998"))
        for url in (
            "", "proxy", "ftp://proxy", "file:///etc/hostname", "http://10.0.0.1:8999", "http://10.0.0.1", "http://[fd00::1]:81/", "http://10.2.0.1",
            "http://proxy.evil/", "http://proxy@evil/", "http://127.0.0.1@evil/", "http://evil/@127.0.0.1", "http://2130706433/", "http://[::1", "http://a:99999", "http:///x", "http://:8998/",
        ):  # fmt: skip
            self.assertIn("report_url", config.refuses("report_url", url), url)


class TestLayout(unittest.TestCase):
    def test_planes(self):
        """Layers at equal distances are one plane, and come out of it as they were."""
        layers = [layout.Layer(f"l{k}", 100 + 1000 * k, 10, 10) for k in range(4)] + [layout.Layer("l4", 9000, 20, 20), layout.Layer("l5", 9500, 20, 20)]
        found = layout.planes(layers)
        self.assertEqual(found, [[100, 1000, 10, 4], [9000, 500, 20, 2]])
        self.assertEqual(layout.places(json.loads(json.dumps(found))), [(x.offset, x.stride) for x in layers])
        self.assertEqual(layout.layers(found), 6)
        for bad in (None, [1], [[1, 2, 3]], [[1, 2, 3, -4]], [[1, 2, 3, "4"]], [[1, 2, 3, 1 << 62]], [[1 << 61, 1 << 61, 3, 4]]):
            self.assertEqual(layout.layers(bad), -1)

    def test_runs(self):
        for ours, theirs, want in (
            ([], [], []),
            ([7], [3], [(7, 3, 1, 0, 0)]),
            ([1, 2, 3], [5, 6, 7], [(1, 5, 3, 1, 1)]),
            ([9, 8, 7], [5, 6, 7], [(9, 5, 3, -1, 1)]),
            ([1, 2, 3, 9], [5, 6, 7, 8], [(1, 5, 3, 1, 1), (9, 8, 1, 0, 0)]),
            ([1, 2, 4, 5], [5, 6, 7, 8], [(1, 5, 2, 1, 1), (4, 7, 2, 1, 1)]),
        ):
            self.assertEqual(layout.runs(ours, theirs), want)
            pairs = [(o + k * so, t + k * st) for o, t, n, so, st in layout.runs(ours, theirs) for k in range(n)]
            self.assertEqual(pairs, list(zip(ours, theirs)))

    def test_ranges(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("SKIPPED: no numpy: ranges are not made")
        parts = [(1000, 10, 500, 20, 10, 0), (2000, 8, 0, 8, 8, 1)]
        made = [tuple(int(v) for v in r) for r in layout.ranges(parts, [4, 3, 9], [1, 2, 7])]
        self.assertEqual(
            made,
            [
                (1040, 520, 10, 2, -10, 20, 0, 0),
                (1090, 640, 10, 1, 0, 0, 0, 0),
                (2032, 8, 8, 2, -8, 8, 1, 0),
                (2072, 56, 8, 1, 0, 0, 1, 0),
            ],
        )


class Tensor:
    """What Buffer.of asks of torch's."""

    def __init__(self, at=0, blocks=6, stride=40, page=40, buffer=1000, device="cpu", contiguous=True):
        self.at, self.blocks, self.gap, self.page, self.buffer, self.contiguous = at, blocks, stride, page, buffer, contiguous
        self.device, self.shape, self.nbytes = types.SimpleNamespace(type=device), (blocks, 2, 5), page

    def __getitem__(self, _):
        return self

    def is_contiguous(self):
        return self.contiguous

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self.buffer, nbytes=lambda: 4000)

    def data_ptr(self):
        return self.buffer + self.at

    def stride(self, _):
        return self.gap // 4

    def element_size(self):
        return 4


class TestBuffer(unittest.TestCase):
    def test_layers(self):
        """Blocks of the kernels that are halves of vLLM's are joined."""
        found = Buffer.of({"l0": Tensor(), "l1": Tensor(at=240)}, 3, "staged")
        self.assertEqual((found.address, found.length, found.blocks), (1000, 4000, 3))
        self.assertEqual(found.layers, [layout.Layer("l0", 0, 80, 80), layout.Layer("l1", 240, 80, 80)])
        found = Buffer.of({"l0": Tensor(stride=100)}, 6, "direct")
        self.assertEqual(found.layers, [layout.Layer("l0", 0, 100, 40)])

    def test_refused(self):
        for tensor, text in (
            (Tensor(buffer=2000), "not in the buffer of the other layers"),
            (Tensor(contiguous=False), "needs the layout LBHNC"),
            (Tensor(blocks=7), "needs the layout LBHNC"),
            (Tensor(stride=100), "blocks of kernels with gaps"),
        ):
            with self.assertRaisesRegex(NotImplementedError, f"KV of l1 .*{text}"):
                Buffer.of({"l0": Tensor(), "l1": tensor}, 3, "staged")
        with self.assertRaisesRegex(NotImplementedError, "KV is on .*xpu.*: KvferryConnector moves KV of CPUs, and of GPUs that torch calls cuda"):
            Buffer.of({"l0": Tensor(device="xpu")}, 3, "staged")


class TestHolds(unittest.TestCase):
    def test_release(self):
        holds = Holds(lease=10)
        self.assertEqual(holds.step(0, [Hold(1, "a", 71), Hold(2, "b", 72)]).requests, [])
        self.assertFalse(holds.over(1))
        self.assertEqual(holds.step(8, released=[(1, 72), (2, 0), (2, 71)]).requests, [])  # somebody who counts
        self.assertFalse(holds.over(1) or holds.over(2))
        freed = holds.step(9, released=[(2, 72)])
        self.assertEqual((freed.requests, freed.expired, freed.late), (["b"], [], 0))
        self.assertEqual((holds.over(1), holds.over(2)), (False, True))

    def test_early(self):
        """D's release is there before vLLM's step has said that there is a hold."""
        holds = Holds(lease=10)
        self.assertEqual(holds.step(0, released=[(1, 71), (2, 71)]).requests, [])
        self.assertEqual(holds.step(1).requests, [])
        self.assertEqual(holds.step(2, [Hold(1, "a", 71), Hold(2, "b", 72)]).requests, ["a"])
        self.assertEqual((list(holds.early), list(holds.held)), ([(2, 71)], [2]))

    def test_early_kept(self):
        """Releases of holds that never are: so many are kept as there are words, and for as long as the lease."""
        holds = Holds(lease=10)
        holds.step(0, released=[(n, 0) for n in range(10**15, 10**15 + 3 * SLOTS)])
        self.assertEqual(len(holds.early), SLOTS)
        self.assertEqual(holds.step(1, [Hold(10**15 + 3 * SLOTS - 1, "a")]).requests, ["a"])
        holds.step(10)
        self.assertEqual(holds.early, {})

    def test_lease(self):
        holds = Holds(lease=10)
        holds.step(0, [Hold(1, "a")])
        holds.step(5, [Hold(2, "b")])
        self.assertEqual(holds.step(9.9).requests, [])
        freed = holds.step(10)
        self.assertEqual((freed.requests, freed.expired), (["a"], ["a"]))
        freed = holds.step(11, released=[(1, 0), (2, 0)])
        self.assertEqual((freed.requests, freed.expired, freed.late), (["b"], [], 1))
        self.assertEqual(holds.early, {})

    def test_slots(self):
        """A word tells of the highest hold that has ended, so that D never takes one for held that is not."""
        holds = Holds(lease=10)
        holds.step(0, [Hold(3, "a"), Hold(3 + SLOTS, "b")])
        holds.step(1, released=[(3 + SLOTS, 0)])
        self.assertTrue(holds.over(3) and holds.over(3 + SLOTS))
        self.assertFalse(holds.over(3 + 2 * SLOTS))
        self.assertEqual(holds.step(2, released=[(3, 0)]).requests, ["a"])
        self.assertTrue(holds.over(3 + SLOTS))


def pull(request="r", ours=(1, 2), **more):
    return pulls.Pull(request, 7, [pulls.Peer("there", [])], list(ours), list(ours), **more)


class TestPulls(unittest.TestCase):
    def run_(self, *steps):
        """Steps are an event and the actions that follow; then nothing may be left."""
        p = pulls.Pulls()
        for event, *want in steps:
            self.assertEqual(p.step([event]), want)
        self.assertEqual(p.states, {})

    def test_good(self):
        a = pull()
        self.run_((pulls.Asked(a), pulls.Read(a)), (pulls.Done("r"), pulls.Confirm(a)), (pulls.Done("r"), pulls.Finish(a), pulls.Release(a)))

    def test_nothing_to_read(self):
        a = pull(ours=())
        self.run_((pulls.Asked(a), pulls.Release(a)))

    def test_errors(self):
        a = pull()
        self.run_((pulls.Asked(a), pulls.Read(a)), (pulls.Done("r", "cut"), pulls.Finish(a, "cut"), pulls.Release(a)))
        self.run_((pulls.Asked(a), pulls.Read(a)), (pulls.Done("r"), pulls.Confirm(a)), (pulls.Done("r", "cut"), pulls.Finish(a, "cut")))

    def test_silent(self):
        """P does not answer a small READ: the large one, which may take long, is given up."""
        a = pull()
        asked = pulls.Asked(a), pulls.Read(a)
        self.run_(asked, (pulls.Silent("r", "gone"), pulls.Cancel(a)), (pulls.Done("r", "canceled"), pulls.Finish(a, "gone")))
        self.run_(asked, (pulls.Done("r"), pulls.Confirm(a)), (pulls.Silent("r", "late"),), (pulls.Done("r"), pulls.Finish(a), pulls.Release(a)))
        self.run_(asked, (pulls.Aborted("r"), pulls.Cancel(a)), (pulls.Silent("r", "gone"),), (pulls.Done("r", "canceled"), pulls.Finish(a, "gone", aborted=True)))

    def test_lease(self):
        """Blocks that P did not hold any more when they had been read are not used."""
        a = pull()
        p = pulls.Pulls()
        p.step([pulls.Asked(a), pulls.Done("r")])
        finish, _ = p.step([pulls.Done("r", ended=True)])
        self.assertIn("lease had ended", finish.error)

    def test_abort(self):
        """vLLM gets the blocks back when no batch can touch them any more: not before the canceled one is over."""
        a = pull()
        canceled = pulls.Asked(a), pulls.Read(a)
        self.run_(
            canceled,
            (pulls.Aborted("r"), pulls.Cancel(a)),
            (pulls.Aborted("r"),),
            (pulls.Done("r", "canceled"), pulls.Finish(a, "canceled", aborted=True), pulls.Release(a)),
        )
        self.run_(canceled, (pulls.Aborted("r"), pulls.Cancel(a)), (pulls.Done("r"), pulls.Finish(a, aborted=True), pulls.Release(a)))
        self.run_(canceled, (pulls.Done("r"), pulls.Confirm(a)), (pulls.Aborted("r"),), (pulls.Done("r"), pulls.Finish(a, aborted=True), pulls.Release(a)))
        self.run_((pulls.Aborted("r"),), (pulls.Done("r"),))


class Request(types.SimpleNamespace):
    def __init__(self, request_id, tokens, params, computed=None, first=0, **more):
        plain = {"prompt_embeds": None, "prompt_is_token_ids": None, "lora_request": None, "cache_salt": None, "mm_features": []}
        super().__init__(**{**plain, "prompt_token_ids": list(range(first, first + tokens)), **more})
        self.request_id, self.num_prompt_tokens, self.kv_transfer_params = request_id, tokens, params
        self.num_computed_tokens = tokens if computed is None else computed


ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


class TestAsked(unittest.TestCase):
    def test_kinds(self):
        """Whose KV comes from where and goes to whom, and how, with a bootstrap of ours and without."""
        comes, goes, named = {"do_remote_prefill": True}, {"do_remote_decode": True}, {"transfer_id": "t"}
        address = {"remote_bootstrap_addr": "http://p:1"}
        for params, writes, want in (
            (None, True, ("", "", "")),
            ({**named, **address}, True, ("", "", "")),
            (comes, True, ("pull", "", "")),
            ({**comes, **named, **address}, False, ("layerwise", "", "")),
            (goes, True, ("", "pull", "")),
            ({**goes, "transfer_id": None}, True, ("", "pull", "")),
            ({**goes, **named}, False, ("", "pull", "")),
            ({**goes, **named}, True, ("", "layerwise", "t")),
            ({**comes, **goes, **named, **address}, True, ("layerwise", "layerwise", "t")),
        ):
            asked = Asked.of(Request("a", 1, params), writes)
            self.assertEqual((asked.comes, asked.goes, asked.transfer), want, params)


class TestScheduler(unittest.TestCase):
    def setUp(self):
        self.now = 0.0
        self.p, self.d = self.scheduler("P"), self.scheduler("D")

    def scheduler(self, name, model="m", ranks=1, **config):
        s = Scheduler(Config("tcp/lo", **config), name, 16, lambda: self.now)
        s.set_ranks([Rank(f"{name}{k}", [[0, 0, 1, 1]], {"dtype": model, "tp": str(ranks)}) for k in range(ranks)])
        return s

    def answer(self, tokens=40, blocks=(5, 6, 7), p=None):
        """P's kv_transfer_params, as they come through JSON."""
        held, params = (p or self.p).finished(Request("a", tokens, dict(ASK)), list(blocks), True)
        self.assertTrue(held)
        return json.loads(json.dumps(params))

    def test_hold(self):
        params = self.answer(blocks=(5, 6, 7, 8))
        self.assertEqual((params["do_remote_prefill"], params["do_remote_decode"], params["remote_block_ids"]), (True, False, [5, 6, 7]))
        self.assertEqual(self.p.step({}).holds, [Hold(1, "a", params["remote_key"])])
        self.assertNotIn(self.answer()["remote_key"], (0, params["remote_key"]))
        self.p.step({})
        self.assertEqual(self.p.step({}).holds, [])
        self.assertEqual(self.p.finished(Request("b", 40, dict(ASK)), [1], False), (False, None))
        self.assertEqual(self.p.finished(Request("b", 40, dict(ASK)), [], True), (False, None))
        self.assertEqual(self.p.finished(Request("b", 40, None), [1], True), (False, None))

    def test_pull(self):
        r = Request("b", 40, self.answer())
        self.d.new_request(r)
        self.assertEqual(self.d.matched(r, 0), (40, True))
        self.assertEqual(self.d.matched(r, 0), (40, True))  # no effect
        self.now = 2.0
        self.d.allocated(r, [11, 12, 13], 40)
        step = self.d.step({})
        self.assertTrue(step.idle)
        (found,) = step.pulls
        self.assertEqual((found.request, found.hold, found.key, found.ours, found.theirs, found.checked), ("b", 1, r.kv_transfer_params["remote_key"], [11, 12, 13], [5, 6, 7], 0))
        self.assertEqual(found.peers, [pulls.Peer("P0", [[0, 0, 1, 1]])])
        self.assertEqual(self.d.matched(r, 0), (0, False))  # P's blocks are pulled once
        self.d.allocated(r, [11, 12, 13, 14], 0)
        self.assertEqual(self.d.step({"b": 41}).pulls, [])
        self.d.transferred({"b": report.Part(1, 2, 3, 4, 5, 6)}, ["b"])
        _, params = self.d.finished(r, [11], True)
        self.assertEqual(
            params["kvferry"],
            {"request_id": "b", "queue_us": 2000000, "post_us": 1, "wire_us": 2, "land_us": 3, "kv_bytes": 4, "kv_blocks_checked": 5, "kv_blocks_bad": 6},
        )

    def test_reported(self):
        """Once: when the transfer is over, or when the request has ended before that."""
        for over in ([], ["b"]):
            r = Request("b", 40, {**self.answer(), "report_url": "http://localhost"})
            with unittest.mock.patch.object(report, "queue") as made, unittest.mock.patch.object(report, "_queue", None), unittest.mock.patch("threading.Thread"):
                self.d.allocated(r, [11, 12, 13], self.d.matched(r, 0)[0])
                self.d.transferred({}, over)
                put = made.Queue.return_value.put_nowait
                self.assertEqual(put.call_count, len(over))
                self.d.finished(r, [11], not over)
            put.assert_called_once()

    def test_report_elsewhere(self):
        """A request does not send the engine to an address that its configuration lacks."""
        self.d.config = Config.of({"rails": "cma", "allow": "10.0.0.1:8000"})
        for url, goes in (("http://10.0.0.1:8000/x", True), ("http://10.0.0.1/x", False), ("http://169.254.169.254/latest", False), ("file:///etc/hostname", False)):
            self.d.warned = False
            r = Request("b", 40, {**self.answer(), "report_url": url})
            if goes:
                self.d.allocated(r, [11, 12, 13], self.d.matched(r, 0)[0])
            else:
                with self.assertLogs("vllm.kvferry", "WARNING") as logged:
                    self.d.allocated(r, [11, 12, 13], self.d.matched(r, 0)[0])
                self.assertIn(f"report_url '{url}'", logged.output[0])
            self.assertEqual(self.d.reports["b"].url, url if goes else "")

    def test_handed_on(self):
        """A request that has its KV from a P, and that another D will have, is held as any."""
        r = Request("b", 40, {**self.answer(), "do_remote_decode": True})
        self.d.allocated(r, [11, 12, 13], self.d.matched(r, 0)[0])
        held, params = self.d.finished(r, [11, 12, 13], True)
        self.assertEqual((held, params["remote_block_ids"]), (True, [11, 12, 13]))
        self.assertEqual((len(self.d.step({}).holds), self.d.reports), (1, {}))

    def test_cached(self):
        """D's prefix cache has two blocks: one is pulled; all of them: none is, and P is told."""
        r = Request("b", 40, self.answer())
        self.assertEqual(self.d.matched(r, 32), (8, True))
        self.d.allocated(r, [1, 2, 3], 8)
        (found,) = self.d.step({}).pulls
        self.assertEqual((found.ours, found.theirs), ([3], [7]))
        r = Request("c", 32, self.answer(32))
        self.assertEqual(self.d.matched(r, 32), (0, False))
        self.d.allocated(r, [1, 2], 0)
        (found,) = self.d.step({"c": 32}).pulls
        self.assertEqual((found.hold, found.ours), (2, []))

    def test_longer(self):
        """D's prompt is longer than P's: D computes the rest."""
        r = Request("b", 60, self.answer())
        self.assertEqual(self.d.matched(r, 0), (40, True))
        self.d.allocated(r, [1, 2, 3], 40)
        self.assertEqual(self.d.step({}).pulls[0].theirs, [5, 6, 7])

    def test_other_prompt(self):
        """Two prompts in one request to D, which are given what P has answered for one, or a prompt that is shorter than P's: computed."""
        for r in Request("b", 40, self.answer(), first=1), Request("c", 39, self.answer()):
            with self.assertLogs("vllm.kvferry", "ERROR") as logged:
                self.assertEqual(self.d.matched(r, 0), (0, False))
            self.assertIn("P's prompt is another", logged.output[0])
            self.d.allocated(r, [1, 2, 3], 0)
            self.assertEqual(self.d.step({}).pulls, [])

    def test_never_scheduled(self):
        r = Request("b", 40, self.answer())
        self.assertEqual(self.d.finished(r, [], False)[0], False)
        (found,) = self.d.step({}).pulls
        self.assertEqual((found.hold, found.ours), (1, []))

    def test_wrong(self):
        for p, params, text in (
            (self.scheduler("P", model="other"), {}, "not of the kind of D's: dtype is 'other' at P and 'm' at D"),
            (self.scheduler("P", ranks=2), {}, "P has 2 tensor-parallel ranks and D 1"),
            (self.p, {"remote_hold": None}, "no remote_hold: give D all that P has answered"),
            (self.p, {"remote_hold": "1"}, "are not what P has answered"),
            (self.p, {"remote_key": "1"}, "are not what P has answered"),
            (self.p, {"remote_kind": "m"}, "no fingerprint in common: give both the same kvferry"),
            (self.p, {"remote_prompt": ""}, "no fingerprint in common"),
            (self.p, {"remote_block_ids": [5, 6]}, "are not what P has answered"),
            (self.p, {"remote_checked_blocks": True}, "are not what P has answered"),
            (self.p, {"remote_block_ids": [5, 6, -7]}, "are not what P has answered"),
            (self.p, {"remote_ranks": [["P0"]]}, "remote_ranks are not what P says"),
            (self.p, {"remote_ranks": [{"advertisement": "P0", "planes": [[0, 0, 1, 2]]}]}, "have other layers than remote_kind"),
        ):
            r = Request("b", 40, {**self.answer(p=p), **params})
            with self.assertLogs("vllm.kvferry", "ERROR") as logged:
                self.assertEqual(self.d.matched(r, 0), (0, False))
            self.assertRegex(logged.output[0], f"kvferry: b: .*{text}.*: its prompt is computed here")
            self.assertEqual((self.d.counts()["num_failed_transfers"], self.d.counts()), (1, None))
            self.d.allocated(r, [1, 2, 3], 0)
            self.d.finished(r, [1], True)
            self.d.finished(Request("c", 40, {**self.answer(p=p), **params}), [], False)
            self.assertEqual(self.d.step({}).pulls, [])

    def test_blocks_of_others(self):
        """P's blocks have other tokens, so that there are not as many: the log names that field all the same."""
        p = Scheduler(Config("tcp/lo"), "P", 32)
        p.set_ranks([Rank("P0", [[0, 0, 1, 1]], {"block_tokens": "32"})])
        self.d.set_ranks([Rank("D0", [[0, 0, 1, 1]], {"block_tokens": "16"})])
        r = Request("b", 40, self.answer(p=p))
        with self.assertLogs("vllm.kvferry", "ERROR") as logged:
            self.assertEqual(self.d.matched(r, 0), (0, False))
        self.assertIn("block_tokens is '32' at P and '16' at D", logged.output[0])

    def test_chunks(self):
        """Blocks that a chunk of the prompt has changed are checked, and copied from a GPU; those of the prefix cache come with the first."""
        p = self.scheduler("P")
        p.block_ids = {"a": [5, 6, 7, 8]}.__getitem__
        p.allocated(Request("a", 60, dict(ASK)), [5, 6, 7, 8], 0)
        p.allocated(Request("b", 60, None), [9], 0)
        self.assertEqual(p.step({"a": 24, "b": 10}).chunks, [Chunk("a", "", 0, 24, 60, [5, 6])])
        self.assertEqual(p.step({"a": 60}).chunks, [Chunk("a", "", 24, 60, 60, [5, 6, 7, 8])])
        p.finished(Request("a", 60, dict(ASK)), [5, 6, 7, 8], True)
        self.assertEqual(p.step({"a": 61}).chunks, [])

    def test_checked(self):
        """The block in which P's answer goes on has no checksum, and D is given how many have one of those that it lacks."""
        p = self.scheduler("P", checksums=True)
        for tokens, computed, blocks, want in ((40, 40, 3, 3), (40, 41, 3, 2), (32, 33, 3, 2), (32, 32, 2, 2)):
            _, params = p.finished(Request("a", tokens, dict(ASK), computed), list(range(5, 5 + blocks)), True)
            self.assertEqual(params["remote_checked_blocks"], want)
            r = Request("b", tokens, params)
            self.assertEqual(self.d.matched(r, 16), (tokens - 16, True))
            self.d.allocated(r, [1, 2, 3], tokens - 16)
            self.assertEqual(self.d.step({}).pulls[0].checked, want - 1)
        self.assertEqual(self.answer()["remote_checked_blocks"], 0)


class TestChecksums(unittest.TestCase):
    def test_wrong(self):
        memory = bytearray(range(200))
        import ctypes

        c = Checksums(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 200, [(0, 10, 10), (100, 10, 10)], 10)
        c.make([3, 4])
        self.assertEqual(c.wrong([3, 4]), [])
        memory[145] ^= 1
        self.assertEqual(c.wrong([3, 4]), [4])
        memory[139] ^= 1
        self.assertEqual(c.wrong([3, 4]), [3, 4])
        memory[139] ^= 1
        memory[129] ^= 1  # of no block that was asked for
        self.assertEqual(c.wrong([3]), [])
        self.assertEqual(c.wrong([5]), [5])  # never made


class TestStats(unittest.TestCase):
    def test_counts(self):
        a, b = stats.empty(), stats.empty()
        self.assertTrue(stats.is_empty(a))
        for name in stats.TIMES:
            b[name] += [0.5, 1.5]
        b["bytes_transferred"] += [1 << 20, 3 << 20]
        b["num_descriptors"] += [4, 6]
        b["num_failed_transfers"] += 2
        stats.add(a, b)
        stats.add(a, stats.empty())
        self.assertFalse(stats.is_empty(a))
        line = stats.reduced(a)
        self.assertEqual((line["Num successful transfers"], line["Avg xfer time (ms)"], line["P90 post time (ms)"]), (2, 1000, 1500))
        self.assertEqual((line["Throughput (MB/s)"], line["Avg number of descriptors"], line["Num failed transfers"]), (2, 5, 2))
        self.assertEqual(stats.reduced(stats.empty())["Throughput (MB/s)"], 0)


class TestReport(unittest.TestCase):
    def test_post(self):
        """A report goes out; one to nowhere is dropped and keeps nobody waiting."""
        got = []
        there = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()
                there.set()

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        made = report.Report("a", 5, "http://127.0.0.1:9/nobody")
        with self.assertLogs("vllm.kvferry", "WARNING"):
            report.post(made)
            report.post(report.Report("x", 5, "no url"))
            report.post(report.Report("x", 5, "http://127.0.0.1:9/no url"))
            made.url = f"http://127.0.0.1:{server.server_port}/report"
            made.add(report.Part(1, 2, 3, 4, 0, 0))
            made.add(report.Part(2, 1, 3, 4, 0, 0))
            report.post(made)
            self.assertTrue(there.wait(60))
        self.assertEqual((got[0]["request_id"], got[0]["post_us"], got[0]["wire_us"], got[0]["kv_bytes"]), ("a", 2, 2, 8))


if __name__ == "__main__":
    unittest.main()
