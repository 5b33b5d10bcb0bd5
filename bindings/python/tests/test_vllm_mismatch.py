"""Real vLLM for CPU whose P does not match D: in each cell one field differs, and D must answer as one undivided instance does.

KVFERRY_VLLM=1 has this run, after kvferry lab vllm setup: -k matrix all cells, -k few the three of CI. Each cell is a line that is printed.
What vLLM for CPU cannot vary is in test_vllm_fingerprint.py.
"""

from __future__ import annotations

import array
import json
import os
import pathlib
import random
import shutil
import struct
import tempfile
import unittest

from test_vllm_real import ASK, FOLDER, Instance, port, prompt

AVX512 = "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()
"""vLLM for CPU has KV in fp8 with it alone."""

BASES = {
    "fp32": {},
    "bf16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"},
    "adapters": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1},
    "embeds": {"enable_prompt_embeds": True},
}
"""D's options of LLM, which P has too but for one."""

INSTANCES = (
    # the field, D's options, what P has otherwise
    ("dtype", "bf16", {"dtype": "float16"}),  # as many bytes
    ("weights", "bf16", {"model": "altered"}),
    ("dtype", "fp32", {"dtype": "bfloat16"}),
    ("weights", "fp32", {"model": "altered"}),
    ("kv_dtype", "fp8", {"kv_cache_dtype": "fp8_e4m3"}),
    ("kv_dtype", "fp8", {"kv_cache_dtype": "auto"}),
    ("dtype", "fp8", {"dtype": "float16"}),
    ("weights", "fp8", {"model": "altered"}),
    ("block_tokens", "fp32", {"block_size": 64}),
    ("positions", "fp32", {"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}}),
    ("heads", "fp32", {"hf_overrides": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}}),
    ("architecture", "fp32", {"hf_overrides": {"rms_norm_eps": 0.1}}),
    ("tensor-parallel ranks", "fp32", {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
)
REQUESTS = (
    # the field, D's options, what P and D are asked with
    ("adapter", "adapters", {}, {"adapter": "a"}),
    ("adapter", "adapters", {"adapter": "a"}, {"adapter": "b"}),
    ("adapter", "adapters", {"adapter": "a", "folder": "b"}, {"adapter": "a"}),
    ("cache_salt", "fp32", {"salt": "one"}, {"salt": "two"}),
    ("tokens", "fp32", {"number": 1}, {"number": 2}),
    ("prompt_embeds", "embeds", {"embeds": 1}, {"embeds": 2}),
)
HANDOFFS = ("pull", "layerwise")
ADAPTERS = ("a", "b")


def altered(folder):
    """The tiny model, of which one tensor has other signs."""
    shutil.copytree(FOLDER / "models" / "tiny", folder)
    (name,) = folder.glob("*.safetensors")
    data = bytearray(name.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + size])["model.layers.1.self_attn.k_proj.weight"]["data_offsets"]
    signs = slice(8 + size + begin + 3, 8 + size + end, 4)
    data[signs] = data[signs].translate(bytes(b ^ 0x80 for b in range(256)))
    name.write_bytes(data)


def adapter(folder, seed):
    """A LoRA adapter of the tiny model."""
    folder.mkdir()
    draw, header, data = random.Random(seed), {}, b""
    for layer in range(4):
        for shape, part in (([8, 256], "A"), ([128, 8], "B")):
            values = array.array("f", [draw.gauss(0, 0.3) for _ in range(shape[0] * shape[1])]).tobytes()
            header[f"base_model.model.model.layers.{layer}.self_attn.k_proj.lora_{part}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["k_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


@unittest.skipUnless(os.environ.get("KVFERRY_VLLM") == "1", "SKIPPED: real vLLM is not run: KVFERRY_VLLM=1 has it run, after kvferry lab vllm setup")
class TestMismatch(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        altered(self.folder / "altered")
        for name in ADAPTERS:
            adapter(self.folder / name, name)
        self.count = 0

    def instance(self, role, base, **other):
        """One that is up."""
        made = self.begin(role, base, **other)
        made.get("ready")
        return made

    def pair(self, base):
        """P and D that are alike, and up."""
        p, d = self.begin("kv_producer", base), self.begin("kv_consumer", base)
        for side in (p, d):
            side.get("ready")
        return p, d

    def begin(self, role, base, core=None, **other):
        """Starts an instance; without a role, an undivided one. P has a core of its own unless told."""
        bootstrap = f"127.0.0.1:{port()}"
        config = {"rails": "tcp/lo", "timeout": 60, "lease": 120, "handoff": "layerwise", "bootstrap": bootstrap}
        connector = {"kv_connector": "KvferryConnector", "kv_connector_module_path": "kvferry.vllm", "kv_load_failure_policy": "recompute"}
        connector.update(kv_role=role, kv_connector_extra_config=config)
        options = {**BASES[base], **other}
        model = self.folder / options.pop("model") if "model" in options else None
        made = Instance(self, int(role == "kv_producer") if core is None else core, connector if role else None, model=model, **options)
        made.bootstrap = f"http://{bootstrap}"
        return made

    def ask(self, instance, asked, most, params=None):
        """Asks an instance, and does not wait for its answer."""
        self.count += 1
        order = {"tokens": prompt(asked.get("number", 0), 300), "max_tokens": most, "params": params}
        if "adapter" in asked:
            name, folder = asked["adapter"], asked.get("folder", asked["adapter"])
            order["lora"] = [name, 1 + ADAPTERS.index(name) + 2 * ADAPTERS.index(folder), str(self.folder / folder)]
        instance.send(do="generate", id=f"q{self.count}", **order, **{name: asked[name] for name in ("salt", "embeds", "prompt_logprobs") if name in asked})

    def want(self, base, asked):
        """What an undivided instance answers to each of these."""
        alone = self.instance(None, base)
        answers = []
        for one in asked:
            self.ask(alone, one, 16)
            answers.append(alone.answer()[0])
        alone.end()
        return answers

    def cell(self, field, base, handoff, p, d, want, ask_p, ask_d, what):
        """P's KV and D's request in one field apart; "" for none, where D must take the KV."""
        before, logged = d.ask("counted", do="count"), len(d.errors())
        self.count += 1
        name = f"t{self.count}"
        if handoff == "layerwise":
            self.ask(d, ask_d, 16, {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": name, "remote_bootstrap_addr": p.bootstrap})
            self.ask(p, ask_p, 1, {**ASK, "transfer_id": name})
            p.answer()
        else:
            self.ask(p, ask_p, 1, ASK)
            self.ask(d, ask_d, 16, p.answer()[1])
        got, after = d.answer()[0], d.ask("counted", do="count")
        received, lines = after["received"] - before["received"], [line.split("kvferry: ", 1)[-1].strip() for line in d.errors()[logged:]]
        print(f"{base:9s} {field or 'none':22s} {handoff:10s} tokens {'equal' if got == want else 'WRONG'}  received {received:4d}  {what}  {'; '.join(lines)}", flush=True)
        with self.subTest(field=field, base=base, handoff=handoff, what=what):
            if field:
                self.assertEqual((got, received), (want, 0))
                self.assertEqual(len(lines), 1)
                self.assertIn(field, lines[0])
            else:
                self.assertEqual((received, lines), (300, []))
                if base in ("fp32", "adapters", "embeds"):  # D computes the last token in another batch, and sums of bf16 depend on that
                    self.assertEqual(got, want)

    def instances(self, cells):
        for base in dict.fromkeys(base for _, base, _ in cells):
            if base == "fp8" and not AVX512:
                print("fp8       NOT VARIED: this CPU has no AVX-512, without which vLLM has no KV in fp8", flush=True)
                continue
            (want,) = self.want(base, [{}])
            p, d = self.pair(base)
            for field, other in [("", {})] + [(field, other) for field, of, other in cells if of == base]:
                p = self.instance("kv_producer", base, **other) if field else p
                for handoff in HANDOFFS:
                    self.cell(field, base, handoff, p, d, want, {}, {}, str(other).replace(str(self.folder), ""))
                p.end()
            d.end()

    def requests(self, cells):
        for base in dict.fromkeys(base for _, base, _, _ in cells):
            some = [cell for cell in cells if cell[1] == base]
            want = self.want(base, [ask for _, _, _, ask in some])
            p, d = self.pair(base)
            for (field, _, ask_p, ask_d), answer in zip(some, want):
                for handoff in HANDOFFS:
                    what = f"{ask_p} {ask_d}"
                    self.cell(field, base, handoff, p, d, answer, ask_p, ask_d, what)
                    self.cell("", base, handoff, p, d, answer, ask_d, ask_d, what)
            p.end()
            d.end()

    def test_matrix_instances(self):
        self.instances(INSTANCES)

    def test_matrix_requests(self):
        self.requests(REQUESTS)

    def test_few(self):
        """Three cells: two instances' dtype and weights, a request's salt. D by itself is the undivided instance."""
        p, d = self.pair("bf16")
        others = [(cell, self.begin("kv_producer", "bf16", core=core, **cell[2])) for core, cell in enumerate(INSTANCES[:2])]
        self.ask(d, {}, 16)
        want = d.answer()[0]
        for handoff in HANDOFFS:
            self.cell("", "bf16", handoff, p, d, want, {}, {}, "")
            self.cell("cache_salt", "bf16", handoff, p, d, want, {"salt": "one"}, {"salt": "two"}, "")
        p.end()
        for (field, _, _), p in others:
            p.get("ready")
            for handoff in HANDOFFS:
                self.cell(field, "bf16", handoff, p, d, want, {}, {}, "")

    def test_logprobs(self):
        """vLLM does not wait for the KV of a request with prompt_logprobs: D computes it, and serves on."""
        asked = {"prompt_logprobs": 1}
        (want,) = self.want("fp32", [{}])
        p, d = self.pair("fp32")
        for handoff in HANDOFFS:
            for ask, received in ((asked, 0), ({}, 300)):
                before = d.ask("counted", do="count")["received"]
                name = f"l{handoff}{received}"
                if handoff == "layerwise":
                    self.ask(d, ask, 16, {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": name, "remote_bootstrap_addr": p.bootstrap})
                    self.ask(p, ask, 1, {**ASK, "transfer_id": name})
                    p.answer()
                else:
                    self.ask(p, ask, 1, ASK)
                    self.ask(d, ask, 16, p.answer()[1])
                self.assertEqual(d.answer()[0], want)
                self.assertEqual(d.ask("counted", do="count")["received"] - before, received)


if __name__ == "__main__":
    unittest.main()
