"""Fingerprints of what KV means: of an instance, and of a prompt. P's and D's must be equal, or D computes the prompt itself.

A fingerprint is a dict of named fields, so that a log line can name those that differ. A short value stands as it is, a longer
one as a digest, so that a fingerprint takes a few hundred bytes of kv_transfer_params.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import random
import struct
from array import array
from typing import Any, Iterable, Sequence

from . import layout

SHORT = 32
"""Characters of a value that stands as it is."""

SEED, PLACES, BYTES = 20, 1 << 12, 64
"""Samples of weights are drawn with this seed: about PLACES in all and at least one in each tensor, of BYTES bytes each. 272 tensors
take 0.02 s of a core, 100,000 about a second."""

NAMES = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Fields of a model's config that change nothing, or that have a field of their own."""

PLAIN = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
"""Attention backends of GPUs that keep a token's K and V side by side, one like the other. A CPU's order in a block is its own."""


def field(value: Any) -> str:
    """Returns the text that stands for a value: equal values have the same."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= SHORT else digest(text.encode())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def unlike(p: Any, d: Any) -> str:
    """Names the fields in which P's and D's fingerprints differ, with both values; returns "" if they are equal. Either may be a peer's, and
    anything then. What is no fingerprint, or an empty one, is equal to none."""
    if not (isinstance(p, dict) and isinstance(d, dict) and p and d):
        return "P and D have no fingerprint in common: give both the same kvferry"
    names = [name for name in {**d, **p} if p.get(name) != d.get(name)]
    return ", ".join(f"{name:.32} is {p.get(name)!r:.64} at P and {d.get(name)!r:.64} at D" for name in names[:8])


def joined(ranks: Sequence[dict[str, str]]) -> dict[str, str]:
    """Returns an instance's fingerprint, from those of its ranks."""
    return {name: ranks[0][name] if len({rank[name] for rank in ranks}) == 1 else field([rank[name] for rank in ranks]) for name in ranks[0]}


def instance(config: Any, spec: Any, layers: Sequence[layout.Layer]) -> dict[str, str]:
    """Returns a rank's fingerprint. config is vLLM's, and spec that of the KV. The model must be loaded: its layers have the scales then."""
    model, parallel = config.model_config, config.parallel_config
    context, of = config.compilation_config.static_forward_context, getattr(spec, "kv_cache_specs", {})
    attention = [(context[layer.name], of.get(layer.name, spec)) for layer in layers if layer.name in context]
    dtype = str(model.dtype).removeprefix("torch.")
    alias = {"auto": dtype, "fp8": "fp8_e4m3"}
    fields = {
        "weights": weights(model, config.load_config.load_format),
        "dtype": dtype,
        "kv_dtype": _one([alias.get(kept, kept) for kept in (getattr(layer, "kv_cache_dtype", str(spec.dtype)) for layer, spec in attention)]),
        "kv_scales": _one([[getattr(layer, name).tolist() for name in ("_k_scale", "_v_scale") if hasattr(layer, name)] for layer, _ in attention]),
        "heads": _one([f"{spec.num_kv_heads} of {spec.head_size}+{spec.head_size_v}" for _, spec in attention]),
        "layout": _one([_order(layer, spec) for layer, spec in attention]),
        "layers": [[layer.name, layer.page] for layer in layers],
        "block_tokens": str(config.cache_config.block_size),
        "positions": _positions(model),
        "tp": str(parallel.tensor_parallel_size),
        "pp": str(parallel.pipeline_parallel_size),
        "quantization": str(model.quantization),
        "architecture": _meaning(model.hf_config.to_dict()),
    }
    return {name: field(value) for name, value in fields.items()}


def prompt(request: Any, tokens: int, engine: str) -> dict[str, str]:
    """Returns the fingerprint of a request's first tokens and of all else that their KV is made of. engine is this instance's id."""
    fields = {"tokens": digest(array("q", (request.prompt_token_ids or [])[:tokens]).tobytes())}
    if request.prompt_embeds is not None:
        mask = json.dumps((request.prompt_is_token_ids or [])[:tokens]).encode()
        fields["prompt_embeds"] = digest(request.prompt_embeds[:tokens].float().cpu().numpy().tobytes() + mask)
    if request.lora_request is not None:
        fields["adapter"] = adapter(request.lora_request, engine)
    if request.cache_salt:
        fields["cache_salt"] = digest(request.cache_salt.encode())
    if images := [(f.modality, f.identifier, f.mm_position.offset, f.mm_position.length) for f in request.mm_features if f.mm_position.offset < tokens]:
        fields["images"] = field(images)
    return fields


def weights(model: Any, load_format: str) -> str:
    """Returns a digest of samples of all tensors in a model's files; if it has none here, its name and revision."""
    folder = _folder(model.model, model.revision, "config.json")
    files = [] if load_format == "dummy" else _files(folder, ("*.safetensors",)) or _files(folder, ("*.bin", "*.pt", "*.pth", "*.gguf"))
    return _sampled(files) if files else f"{load_format} {model.model}@{model.revision}"


_adapters: dict[int, tuple[Any, str]] = {}  # by vLLM's number of an adapter: its files and when they were changed, and the digest


def adapter(lora: Any, engine: str) -> str:
    """Returns an adapter's name with a digest of samples of its weights, which are read when it is first used. If they cannot be read, or have
    changed since, so that vLLM may have either, it returns a text that no other instance has."""
    try:
        folder = _folder(lora.lora_path, None, "adapter_config.json")
        if not (files := _files(folder, ("adapter_model.*",))):
            raise ValueError("it has no weights")
        key, changed = lora.lora_int_id, [(file, file.stat().st_mtime_ns, file.stat().st_size) for file in (*files, folder / "adapter_config.json")]
        if key not in _adapters or lora.load_inplace:
            if len(_adapters) >= PLACES:
                _adapters.clear()
            _adapters[key] = changed, digest((_sampled(files) + (folder / "adapter_config.json").read_text()).encode())
        if _adapters[key][0] != changed:
            raise ValueError("its files have changed since it was first used")
        return f"{lora.lora_name:.15} {_adapters[key][1]}"
    except Exception as e:  # whatever is wrong with its files: vLLM says it of the request
        return f"{lora.lora_name:.15} of {engine}: {e}"[:128]


def _one(values: list[Any]) -> Any:
    """Returns the value that all layers have, or all values if they differ."""
    return values[0] if all(value == values[0] for value in values) else values


def _order(layer: Any, spec: Any) -> str:
    """Names the order of the bytes in a layer's blocks."""
    name = layer.get_attn_backend().get_name()
    if name in PLAIN and spec.num_head_slots is None and spec.state_content_bytes is None:
        name = "K and V by token"
    return f"{name} {getattr(layer, 'isa', '')}".strip()


def _positions(model: Any) -> dict[str, Any]:
    """Returns the fields of a model's config that say how positions are encoded. vLLM chooses longrope's factors by the instance's longest
    prompt, so that this is one of them then."""
    text = model.hf_text_config.to_dict()
    found = {name: value for name, value in text.items() if any(word in name for word in ("rope", "rotary", "position", "alibi"))}
    if "longrope" in json.dumps(found, default=str):
        found["max_model_len"] = model.max_model_len
    return found


def _meaning(value: Any) -> Any:
    return {name: _meaning(inner) for name, inner in value.items() if name not in NAMES} if isinstance(value, dict) else value


def _folder(name: str, revision: str | None, has: str) -> pathlib.Path:
    """Finds the folder of a model or an adapter: its path, or where a hub's cache has this file of it."""
    if not os.path.exists(name):
        try:
            from huggingface_hub import try_to_load_from_cache

            name = os.path.dirname(try_to_load_from_cache(name, has, revision=revision) or name)
        except (ImportError, ValueError, TypeError):
            pass
    return pathlib.Path(name)


def _files(folder: pathlib.Path, patterns: Iterable[str]) -> list[pathlib.Path]:
    if folder.is_file():
        return [folder]
    return sorted(file for pattern in patterns for file in folder.glob(pattern))


def _sampled(files: Sequence[pathlib.Path]) -> str:
    """Returns a digest of samples of each tensor in files. How tensors are spread over files makes no difference."""
    tensors: list[tuple[str, int, int, int]] = []  # name, dtype and shape; file, begin, end
    opened = [open(file, "rb", buffering=0) for file in files]
    try:
        for k, file in enumerate(opened):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
            size = os.fstat(file.fileno()).st_size
            try:
                (length,) = struct.unpack("<Q", file.read(8))
                for name, tensor in json.loads(os.pread(file.fileno(), length if length < size else 0, 8)).items():
                    if name != "__metadata__":
                        begin, end = tensor["data_offsets"]
                        tensors.append((f"{name} {tensor['dtype']} {tensor['shape']}", k, 8 + length + begin, 8 + length + end))
            except Exception:  # it is no safetensors: the file counts as one tensor
                tensors.append((f"{files[k].name} {size}", k, 0, size))
        tensors.sort()
        draw, total = random.Random(SEED), hashlib.sha256("\n".join(name for name, *_ in tensors).encode())
        for _, k, begin, end in tensors * max(1, PLACES // max(1, len(tensors))):
            total.update(os.pread(opened[k].fileno(), min(BYTES, end - begin), begin + int(draw.random() * max(1, end - begin - BYTES))))
        return total.hexdigest()[:16]
    finally:
        for file in opened:
            file.close()
