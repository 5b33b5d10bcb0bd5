"""The connector in unmodified vLLM: two instances, P and D, a core each. KVFERRY_VLLM=1 has this run, after kvferry lab vllm setup."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import unittest

FOLDER = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvferry" / "vllm"
TESTS = pathlib.Path(__file__).parent
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
MISLEADING = ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "VIRTUAL_ENV")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(TESTS.parent),
}


class Instance:
    def __init__(self, test, core, connector, model=None, **options):
        environment = {k: v for k, v in os.environ.items() if k not in MISLEADING}
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [FOLDER / "env" / "bin" / "python", TESTS / "vllm_instance.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**environment, **ENVIRONMENT},
            text=True,
            start_new_session=True,
        )
        test.addCleanup(self.end)
        self.send(model=str(model or FOLDER / "models" / "tiny"), dtype="float32", max_model_len=4096, core=core, kv_transfer_config=connector, options=options)

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # its workers too, where it has some
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()

    def send(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def get(self, event):
        """The next event, which is this one."""
        line = self.process.stdout.readline()
        got = json.loads(line) if line else {}
        if got.get("event") != event:
            self.log.seek(0)
            raise AssertionError(f"{got} in place of {event}; it printed last:\n" + "".join(self.log.readlines()[-15:]))
        return got

    def ask(self, event, **order):
        self.send(**order)
        return self.get(event)

    def errors(self):
        """What the connector has logged."""
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}") as log:
            return [line for line in log if "ERROR" in line]

    def answer(self):
        self.get("first")
        got = self.get("done")
        return got["tokens"], got["params"] or {}


def prompt(number, length):
    draw = random.Random(f"{number} {length}")
    return [draw.randrange(10, 4000) for _ in range(length)]


def port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@unittest.skipUnless(os.environ.get("KVFERRY_VLLM") == "1", "SKIPPED: real vLLM is not run: KVFERRY_VLLM=1 has it run, after kvferry lab vllm setup")
class TestReal(unittest.TestCase):
    mono: dict[str, list[int]] = {}
    requests = 0

    def instances(self, handoff="pull", p=None, d=None, **config):
        """P and D, with further arguments of LLM for each."""
        self.handoff, self.bootstrap = handoff, f"127.0.0.1:{port()}"
        extra = {"rails": "tcp/lo", "timeout": 20, "lease": 60, "handoff": handoff, "bootstrap": self.bootstrap, **config}
        connector = {
            "kv_connector": "KvferryConnector",
            "kv_connector_module_path": "kvferry.vllm",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }
        self.p = Instance(self, 0, {**connector, "kv_role": "kv_producer"}, **(p or {}))
        self.d = Instance(self, 1, {**connector, "kv_role": "kv_consumer"}, **(d or {}))
        for instance in (self.p, self.d):
            instance.get("ready")

    def expected(self, prompts):
        """What one undivided instance answers."""
        if lacking := [p for p in prompts if str(p) not in self.mono]:
            alone = Instance(self, 0, None)
            alone.get("ready")
            for k, tokens in enumerate(lacking):
                alone.send(do="generate", id=f"m{k}", tokens=tokens, max_tokens=16)
                self.mono[str(tokens)] = alone.answer()[0]
            alone.end()
        return [self.mono[str(p)] for p in prompts]

    def params(self):
        """The next request's name, and the kv_transfer_params that P and, without P's answer, D are asked with."""
        TestReal.requests += 1
        name = f"r{self.requests}"
        if self.handoff == "pull":
            return name, ASK, None
        return name, {**ASK, "transfer_id": name}, {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": name, "remote_bootstrap_addr": f"http://{self.bootstrap}"}

    def prefill(self, tokens, most=1):
        """P answers; what D is to be asked with."""
        name, ask, _ = self.params()
        self.p.send(do="generate", id=name, tokens=tokens, max_tokens=most, params=ask)
        return name, self.p.answer()[1]

    def exchange(self, tokens, between=lambda: None):
        """A prompt's way through P and D, at the same time if it is layerwise: its name, tokens and report."""
        name, ask, take = self.params()
        if take:
            self.d.send(do="generate", id=name, tokens=tokens, max_tokens=16, params=take)
        self.p.send(do="generate", id=name, tokens=tokens, max_tokens=1, params=ask)
        params = self.p.answer()[1]
        between()
        if not take:
            self.d.send(do="generate", id=name, tokens=tokens, max_tokens=16, params=params)
        tokens, params = self.d.answer()
        return name, tokens, params.get("kvferry")

    def check(self, lengths, **config):
        prompts = [prompt(k, n) for n in lengths for k in range(2)]
        want = self.expected(prompts)
        self.instances(**config)
        for tokens, answer in zip(prompts, want):
            before = self.d.ask("counted", do="count")
            name, got, report = self.exchange(tokens)
            after = self.d.ask("counted", do="count")
            self.assertEqual(self.p.errors() + self.d.errors(), [])
            self.assertEqual(got, answer, len(tokens))
            self.assertEqual((after["computed"] - before["computed"], after["received"] - before["received"]), (0, len(tokens)))
            digests = [side.ask("digested", do="digest", id=name, tokens=len(tokens) - 1)["digest"] for side in (self.p, self.d)]
            self.assertEqual(digests[0], digests[1])
            blocks = -(-len(tokens) // 128)
            self.assertEqual((report["kv_bytes"], report["kv_blocks_checked"], report["kv_blocks_bad"]), (blocks * 524288, blocks, 0))
        metrics = self.d.ask("free", do="free")["metrics"]
        self.assertEqual(metrics["vllm:kvferry_bytes_transferred"], sum(-(-len(p) // 128) for p in prompts) * 524288)
        self.assertFalse(metrics["vllm:kvferry_num_failed_transfers"])

    def test_pull(self):
        self.check((128, 512, 2048, 700), checksums=True)

    def test_pull_cma(self):
        self.check((128, 2048), checksums=True, rails="cma")

    def test_layerwise(self):
        self.check((128, 512, 2048, 700), handoff="layerwise", checksums=True)

    def test_layerwise_chunks(self):
        """Prompts that P computes in several steps."""
        self.check((700, 2048), handoff="layerwise", checksums=True, p={"max_num_batched_tokens": 300})

    def test_ranks_pull(self):
        self.ranks("pull")

    def test_ranks_layerwise(self):
        self.ranks("layerwise")

    def ranks(self, handoff):
        """Two tensor-parallel ranks on both sides, each with its own half of KV."""
        two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        self.instances(handoff, p=two, d=two, checksums=True, timeout=100)
        for length in (128, 700):
            tokens = prompt(1, length)
            self.d.send(do="generate", id=f"alone{length}", tokens=tokens, max_tokens=16)
            want, _ = self.d.answer()
            before = self.d.ask("counted", do="count")
            _, got, report = self.exchange(tokens)
            after = self.d.ask("counted", do="count")
            self.assertEqual(self.p.errors() + self.d.errors(), [])
            self.assertEqual((got, after["computed"] - before["computed"]), (want, 0))
            blocks = -(-length // 128)
            self.assertEqual((report["kv_bytes"], report["kv_blocks_checked"], report["kv_blocks_bad"]), (blocks * 524288, 2 * blocks, 0))

    def test_changed(self):
        """Values change on their way: without checksums the tokens are others, with them D computes the block, and is right."""
        tokens = prompt(1, 2048)
        (want,) = self.expected([tokens])
        for checksums in (False, True):
            self.instances(checksums=checksums)
            name = f"r{TestReal.requests + 1}"
            _, got, report = self.exchange(tokens, lambda name=name: self.p.ask("changed", do="change", id=name, block=3))
            self.assertEqual((got == want, report["kv_blocks_bad"]), (checksums, int(checksums)))
            self.p.end()
            self.d.end()

    def test_answered(self):
        """P answers with several tokens, whose KV begins in the prompt's last block: D does not take that one for bad."""
        tokens = prompt(1, 700)
        (want,) = self.expected([tokens])
        self.instances(checksums=True)
        name, params = self.prefill(tokens, 8)
        self.d.send(do="generate", id=name, tokens=tokens, max_tokens=16, params=params)
        got, params = self.d.answer()
        self.assertEqual((got, params["kvferry"]["kv_blocks_checked"], params["kvferry"]["kv_blocks_bad"]), (want, 5, 0))

    def test_cached_pull(self):
        self.cached("pull")

    def test_cached_layerwise(self):
        self.cached("layerwise")

    def cached(self, handoff):
        """D has the first half of a prompt, then all of it: it takes what it lacks, and P has its blocks back."""
        tokens = prompt(1, 2048)
        half = tokens[:1024] + prompt(2, 1024)
        want = self.expected([tokens, half])
        self.instances(handoff, d={"enable_prefix_caching": True}, checksums=True)
        free = self.p.ask("free", do="free")["blocks"]
        for ask, answer, blocks in ((tokens, want[0], 16), (half, want[1], 8), (half, want[1], 1)):
            _, got, report = self.exchange(ask)
            self.assertEqual((got, report["kv_bytes"]), (answer, blocks * 524288))
        self.assertEqual(self.p.ask("free", do="free")["blocks"], free)

    def test_killed(self):
        """kill -9 of P in mid-transfer, and before another: D computes the prompts."""
        prompts = [prompt(k, 2048) for k in range(2)]
        want = self.expected(prompts)
        for handoff in ("pull", "layerwise"):
            self.instances(handoff, timeout=2)
            if handoff == "pull":
                name, params = self.prefill(prompts[0])
                self.p.process.send_signal(signal.SIGSTOP)
            else:  # P does not have the request when D has told it where the blocks go
                name, _, params = self.params()
            self.d.send(do="generate", id=name, tokens=prompts[0], max_tokens=16, params=params)
            time.sleep(0.5)
            self.p.process.kill()
            began = time.monotonic()
            self.assertEqual(self.d.answer()[0], want[0])
            self.assertLess(time.monotonic() - began, 15)
            self.d.send(do="generate", id="again", tokens=prompts[1], max_tokens=16, params=params)
            self.assertEqual(self.d.answer()[0], want[1])
            self.assertEqual(self.d.ask("free", do="free")["metrics"]["vllm:kvferry_num_failed_transfers"], 2)
            self.p.end()
            self.d.end()

    def test_blocks_pull(self):
        self.blocks("pull")

    def test_blocks_layerwise(self):
        self.blocks("layerwise")

    def blocks(self, handoff):
        """500 requests whose D aborts, times out or is lost: no block is lost, at P or at D."""
        self.instances(handoff, timeout=0.2, lease=2)
        sides = self.p, self.d
        free = [side.ask("free", do="free")["blocks"] for side in sides]
        for k in range(500):
            tokens = prompt(k, 128)
            name, params = self.prefill(tokens)
            if k % 4 < 2:  # before it is scheduled, and at any time after that
                self.d.ask("aborted", do="abort", id=name, tokens=tokens, params=params, steps=k // 2 % 8)
            elif k % 4 == 2:  # P does not answer for longer than D waits
                self.p.process.send_signal(signal.SIGSTOP)
                self.d.send(do="generate", id=name, tokens=tokens, max_tokens=1, params=params)
                self.d.answer()
                self.p.process.send_signal(signal.SIGCONT)
            # and a D that never comes
        after = [side.ask("free", do="free") for side in sides]
        self.assertEqual([a["blocks"] for a in after], free)
        p, d = ({name.removeprefix("vllm:kvferry_"): n for name, n in a["metrics"].items()} for a in after)
        print(handoff, p, d)
        self.assertGreaterEqual(p["num_kv_expired_reqs"], 125)


if __name__ == "__main__":
    unittest.main()
