"""The fingerprints of instances and prompts, without vLLM: each field by itself, also those that vLLM for CPU cannot vary."""

from __future__ import annotations

import copy
import json
import pathlib
import struct
import tempfile
import types
import unittest

from kvferry.vllm import fingerprint, layout
from test_vllm_states import Request

Of = types.SimpleNamespace


class Tensor:
    """What is asked of torch's."""

    def __init__(self, values):
        self.values = values

    def __getitem__(self, part):
        return Tensor(self.values[part])

    def float(self):
        return self

    cpu = numpy = float

    def tobytes(self):
        return bytes(self.values)

    def tolist(self):
        return self.values


class HFConfig:
    def __init__(self, **fields):
        self.fields = {"rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "max_position_embeddings": 8192, **fields}

    def to_dict(self):
        return copy.deepcopy(self.fields)


def save(file, tensors, metadata=()):
    """A file of safetensors, of the bytes of each."""
    header, data = dict(metadata), b""
    for name, value in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(value)], "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Folder(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        self.tensors = {f"layers.{k}.weight": bytes((7 * k + n) % 251 for n in range(1000)) for k in range(20)}
        save(self.folder / "model.safetensors", self.tensors)


class TestInstance(Folder):
    def config(self):
        """vLLM's config, and the specification of KV; what is changed in them is a field's."""
        text = HFConfig()
        model = Of(
            model=str(self.folder), revision=None, dtype="torch.bfloat16", max_model_len=4096, quantization=None, hf_text_config=text, hf_config=text
        )
        backend = Of(get_name=lambda: "CPU_ATTN")
        attention = {f"l{k}": Of(kv_cache_dtype="fp8", _k_scale=Tensor(1.0), _v_scale=Tensor(1.0), get_attn_backend=lambda: backend, isa="vec") for k in range(2)}
        spec = Of(num_kv_heads=2, head_size=64, head_size_v=64, num_head_slots=None, state_content_bytes=None, dtype="uint8")
        return Of(
            model_config=model,
            load_config=Of(load_format="auto"),
            cache_config=Of(block_size=128),
            parallel_config=Of(tensor_parallel_size=1, pipeline_parallel_size=1),
            compilation_config=Of(static_forward_context=attention),
            spec=spec,
            layers=[layout.Layer("l0", 0, 10, 10), layout.Layer("l1", 100, 10, 10)],
        )

    def of(self, change=None):
        config = self.config()
        if change:
            change(config)
        return fingerprint.instance(config, config.spec, config.layers)

    def unlike(self, change):
        """The fields that differ, when one thing does."""
        p, d = json.loads(json.dumps(self.of(change))), self.of()
        said = fingerprint.unlike(p, d)
        names = [name for name in d if p[name] != d[name]]
        for name in names:
            self.assertIn(f"{name} is {p[name]!r} at P and {d[name]!r} at D", said)
        self.assertEqual(bool(said), bool(names))
        return names

    def test_fields(self):
        attention = "compilation_config.static_forward_context"

        def all_layers(**fields):
            return lambda c: [vars(layer).update(fields) for layer in c.compilation_config.static_forward_context.values()]

        def one(path, name, value):
            def change(config):
                at = config
                for part in path.split("."):
                    at = getattr(at, part)
                if isinstance(at, dict):
                    at = at["l1"]
                setattr(at, name, value)

            return change

        def backend(name):
            return all_layers(get_attn_backend=lambda: Of(get_name=lambda: name), isa="")

        def hf(**fields):
            def change(config):
                config.model_config.hf_text_config = config.model_config.hf_config = HFConfig(**fields)

            return change

        for change, want in (
            (one("load_config", "load_format", "dummy"), ["weights"]),
            (one("model_config", "dtype", "torch.float16"), ["dtype"]),
            (all_layers(kv_cache_dtype="fp8_e5m2"), ["kv_dtype"]),
            (all_layers(kv_cache_dtype="auto"), ["kv_dtype"]),
            (one(attention, "kv_cache_dtype", "bfloat16"), ["kv_dtype"]),
            (one(attention, "_k_scale", Tensor(0.5)), ["kv_scales"]),
            (all_layers(_v_scale=Tensor([1.0, 2.0])), ["kv_scales"]),
            (one("spec", "num_kv_heads", 4), ["heads"]),
            (one("spec", "head_size", 32), ["heads"]),
            (one("spec", "head_size_v", 32), ["heads"]),
            (all_layers(isa="amx"), ["layout"]),
            (backend("FLASH_ATTN"), ["layout"]),
            (one("cache_config", "block_size", 64), ["block_tokens"]),
            (lambda c: c.layers.pop(), ["layers"]),
            (lambda c: c.layers.__setitem__(1, layout.Layer("l1", 100, 20, 20)), ["layers"]),
            (hf(rope_parameters={"rope_type": "default", "rope_theta": 1e6}), ["positions", "architecture"]),
            (hf(partial_rotary_factor=0.5), ["positions", "architecture"]),
            (hf(rms_norm_eps=1e-5), ["architecture"]),
            (one("parallel_config", "tensor_parallel_size", 2), ["tp"]),
            (one("parallel_config", "pipeline_parallel_size", 2), ["pp"]),
            (one("model_config", "quantization", "fp8"), ["quantization"]),
            # and what is the same
            (all_layers(kv_cache_dtype="fp8_e4m3"), []),
            (one("model_config", "max_model_len", 9999), []),
            (hf(_name_or_path="/elsewhere", transformers_version="5", dtype="float16"), []),
            (lambda c: c.layers.__setitem__(0, layout.Layer("l0", 50, 20, 10)), []),
        ):
            self.assertEqual(self.unlike(change), want)

    def test_backends(self):
        """GPUs' backends have one order of a block's bytes, but not of all kinds of KV; a CPU's has its own."""

        def of(name, **spec):
            def change(config):
                vars(config.spec).update(spec)
                for layer in config.compilation_config.static_forward_context.values():
                    layer.get_attn_backend, layer.isa = (lambda: Of(get_name=lambda: name)), ""

            return self.of(change)["layout"]

        self.assertEqual(len({of(name) for name in fingerprint.PLAIN}), 1)
        self.assertEqual(len({of(name, num_head_slots=4) for name in fingerprint.PLAIN}), 3)
        self.assertEqual(len({of(name) for name in ("CPU_ATTN", "FLASH_ATTN", "FLEX_ATTENTION")}), 3)

    def test_longrope(self):
        """Its factors are chosen by the longest prompt that the instance takes."""

        def of(length):
            def change(config):
                config.model_config.hf_text_config = HFConfig(rope_parameters={"rope_type": "longrope"})
                config.model_config.max_model_len = length

            return self.of(change)["positions"]

        self.assertNotEqual(of(4096), of(9999))

    def test_size(self):
        self.assertLess(len(json.dumps(self.of())), 700)
        self.assertTrue(all(len(value) <= fingerprint.SHORT for value in self.of().values()))

    def test_ranks(self):
        a, b = self.of(), self.of(lambda c: vars(c.spec).update(num_kv_heads=1))
        self.assertEqual(fingerprint.joined([a, a]), a)
        self.assertEqual([name for name in a if fingerprint.joined([a, b])[name] != a[name]], ["heads"])
        self.assertNotEqual(fingerprint.joined([a, b]), fingerprint.joined([b, a]))

    def test_peers(self):
        """What a peer says may be anything; what is logged of it has an end."""
        own = self.of()
        for said in None, "m", [], {}, 5:
            self.assertIn("no fingerprint in common", fingerprint.unlike(said, own))
        self.assertIn("dtype is None at P", fingerprint.unlike({k: v for k, v in own.items() if k != "dtype"}, own))
        self.assertIn("more is 'x' at P and None at D", fingerprint.unlike({**own, "more": "x"}, own))
        self.assertLess(len(fingerprint.unlike({f"{k}" * 999: ["y" * 9999] for k in range(999)}, own)), 2000)


class TestWeights(Folder):
    def of(self, **model):
        return fingerprint.weights(Of(**{"model": str(self.folder), "revision": None, **model}), "auto")

    def test_tensors(self):
        """Each tensor counts, its name and kind too; in which files they are does not, nor where the folder is."""
        before = self.of()
        self.assertEqual(self.of(), before)
        for name in self.tensors:
            save(self.folder / "model.safetensors", {**self.tensors, name: bytes(b ^ 1 for b in self.tensors[name])})
            self.assertNotEqual(self.of(), before, name)
        renamed = {name.replace("9", "x"): value for name, value in self.tensors.items()}
        save(self.folder / "model.safetensors", renamed)
        self.assertNotEqual(self.of(), before)
        names = list(self.tensors)
        for k, some in enumerate((names[15:], names[:15])):
            save(self.folder / ("model.safetensors", "other.safetensors")[k], {name: self.tensors[name] for name in some}, {"__metadata__": {"k": str(k)}})
        self.assertEqual(self.of(), before)

    def test_small(self):
        """Tensors of no bytes, and of fewer than a sample has."""
        save(self.folder / "model.safetensors", {"none": b"", "one": b"1"})
        before = self.of()
        save(self.folder / "model.safetensors", {"none": b"", "one": b"2"})
        self.assertNotEqual(self.of(), before)

    def test_broken(self):
        """A file that is no safetensors is sampled as it is."""
        for data in (b"", b"abc", b"\xff" * 100, struct.pack("<Q", 4) + b"nope" * 100, struct.pack("<Q", 2) + b"[]" * 100):
            (self.folder / "model.safetensors").write_bytes(data)
            before = self.of()
            (self.folder / "model.safetensors").write_bytes(data + b"x")
            self.assertNotEqual(self.of(), before)

    def test_other_files(self):
        (self.folder / "model.safetensors").unlink()
        name = self.of()
        self.assertIn(f"{self.folder}@None", name)
        self.assertNotEqual(self.of(revision="r"), name)
        file = self.folder / "model.gguf"
        file.write_bytes(b"abc" * 1000)
        before = self.of()
        self.assertEqual(self.of(model=str(file)), before)
        file.write_bytes(b"abd" * 1000)
        self.assertNotIn(self.of(), (before, name))


class TestPrompt(Folder):
    def setUp(self):
        super().setUp()
        fingerprint._adapters.clear()
        save(self.folder / "adapter_model.safetensors", self.tensors)
        (self.folder / "adapter_config.json").write_text('{"r":8}')

    def of(self, tokens=40, engine="P", **request):
        return fingerprint.prompt(Request("r", 40, None, **request), tokens, engine)

    def image(self, identifier="i", offset=4):
        return Of(modality="image", identifier=identifier, mm_position=Of(offset=offset, length=16))

    def lora(self, name="a", path=None, number=1, again=False):
        return Of(lora_name=name, lora_path=path or str(self.folder), lora_int_id=number, load_inplace=again)

    def embeds(self, values, **more):
        return {"prompt_embeds": Tensor(values), "prompt_token_ids": None, **more}

    def test_fields(self):
        mixed = {"prompt_token_ids": [0] * 40}
        for field, p, d in (
            ("tokens", {}, {"first": 1}),
            ("cache_salt", {}, {"cache_salt": "a"}),
            ("cache_salt", {"cache_salt": "a"}, {"cache_salt": "b"}),
            ("images", {}, {"mm_features": [self.image()]}),
            ("images", {"mm_features": [self.image("j")]}, {"mm_features": [self.image()]}),
            ("images", {"mm_features": [self.image(offset=5)]}, {"mm_features": [self.image()]}),
            ("adapter", {}, {"lora_request": self.lora()}),
            ("adapter", {"lora_request": self.lora("b")}, {"lora_request": self.lora()}),
            ("prompt_embeds", self.embeds([1] * 40), self.embeds([2] * 40)),
            ("prompt_embeds", self.embeds([1] * 40, **mixed, prompt_is_token_ids=[True] * 40), self.embeds([1] * 40, **mixed, prompt_is_token_ids=[False] * 40)),
        ):
            self.assertEqual(fingerprint.unlike(self.of(**p), json.loads(json.dumps(self.of(engine="D", **p)))), "")
            p, d = self.of(**p), self.of(engine="D", **d)
            self.assertEqual([name for name in {**p, **d} if p.get(name) != d.get(name)], [field])
            self.assertIn(f"{field} is ", fingerprint.unlike(p, d))
        self.assertNotIn("secret", json.dumps(self.of(cache_salt="secret")))

    def test_prefix(self):
        """Of a prompt's first tokens, what comes behind them does not count."""
        short = {"prompt_token_ids": list(range(8))}
        self.assertEqual(self.of(8), self.of(8, **short))
        self.assertEqual(self.of(8, mm_features=[self.image(offset=8)]), self.of(8))
        self.assertNotEqual(self.of(9, mm_features=[self.image(offset=8)]), self.of(9))
        self.assertEqual(self.of(8, **self.embeds([1] * 40)), self.of(8, **self.embeds([1] * 8 + [2] * 32)))

    def test_adapter(self):
        """Its weights count and its scale, under the same name. One that cannot be read is equal to none, and so is one whose files have
        changed, until vLLM has loaded it anew."""
        before = self.of(lora_request=self.lora())
        self.assertEqual(self.of(engine="D", lora_request=self.lora()), before)
        seen = [before]
        for number, change in (
            (2, lambda: (self.folder / "adapter_config.json").write_text('{"r":16,"x":1}')),
            (3, lambda: save(self.folder / "adapter_model.safetensors", {**self.tensors, "more": b"1"})),
        ):
            change()
            p, d = (self.of(engine=engine, lora_request=self.lora()) for engine in "PD")
            self.assertIn("adapter is ", fingerprint.unlike(p, d))
            self.assertIn("have changed", p["adapter"])
            p, d = (self.of(engine=engine, lora_request=self.lora(number=number)) for engine in "PD")
            self.assertEqual(p, d)
            self.assertNotIn(p, seen)
            seen.append(p)
        self.assertEqual(self.of(lora_request=self.lora(again=True)), p)
        for path in ("/nowhere", str(self.folder / "sub")):
            (self.folder / "sub").mkdir(exist_ok=True)
            lora = self.lora(path=path)
            self.assertIn("adapter is ", fingerprint.unlike(self.of(lora_request=lora), self.of(engine="D", lora_request=lora)))


if __name__ == "__main__":
    unittest.main()
