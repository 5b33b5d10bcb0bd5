"""Where the blocks of KV are in a rank's memory, and the ranges that move them.

A rank has one buffer with all layers. Block b of a layer is the `page` bytes at offset + b * stride. What a peer needs of that
is short, since layers are at equal distances: Plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Sequence

import kvferry

KV, DIGESTS, ENDED = range(3)
"""The segments of an advertisement: the blocks, their checksums (checksums.py), the holds that have ended (holds.py)."""

WORD = 8
"""Bytes of an entry of DIGESTS and ENDED."""


@dataclass(frozen=True)
class Layer:
    name: str
    offset: int
    """Of block 0, in the buffer; bytes."""
    stride: int
    """From a block to the next."""
    page: int
    """Bytes of a block."""


def planes(layers: Sequence[Layer]) -> list[list[int]]:
    """Layers as JSON for a peer: [offset, distance of layers, stride, number of layers] of each equal sequence."""
    found: list[list[int]] = []
    for layer in layers:
        last = found[-1] if found else None
        distance = layer.offset - (last[0] + (last[3] - 1) * last[1]) if last else 0
        if last and layer.stride == last[2] and (last[3] == 1 or distance == last[1]):
            last[1], last[3] = distance, last[3] + 1
        else:
            found.append([layer.offset, 0, layer.stride, 1])
    return found


def places(planes: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """The offset and stride of each layer, of what a peer's `planes` has made."""
    return [(offset + k * distance, stride) for offset, distance, stride, count in planes for k in range(count)]


def layers(planes: Any) -> int:
    """How many layers there are in what a peer says of them; -1 if that cannot be read."""
    if not isinstance(planes, list) or not all(isinstance(plane, list) and len(plane) == 4 and naturals(plane) for plane in planes):
        return -1
    if not naturals([offset + (count - 1) * distance for offset, distance, _, count in planes if count]):
        return -1  # places would be more than eight bytes hold
    return sum(plane[3] for plane in planes)


def naturals(values: Any) -> bool:
    """Whether something that a peer says is a list of whole numbers that are not negative, and that eight bytes hold."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def runs(ours: Sequence[int], theirs: Sequence[int]) -> list[tuple[int, int, int, int, int]]:
    """Pairs of blocks as few sequences: first of ours and theirs, how many, the steps of ours and theirs."""
    found: list[tuple[int, int, int, int, int]] = []
    k = 0
    while k < len(ours):
        begin = k
        k += 1
        if k < len(ours):
            steps = ours[k] - ours[begin], theirs[k] - theirs[begin]
            while k < len(ours) and (ours[k] - ours[k - 1], theirs[k] - theirs[k - 1]) == steps:
                k += 1
        count = k - begin
        found.append((ours[begin], theirs[begin], count, *(steps if count > 1 else (0, 0))))
    return found


def ranges(
    parts: Sequence[tuple[int, int, int, int, int, int]],
    ours: Sequence[int],
    theirs: Sequence[int],
) -> Any:
    """Ranges of all parts of all pairs of blocks, one for each part and run, as an array for Engine.submit.

    A part is a layer, or another table with an entry a block: address of ours of block 0, its stride, offset and stride of
    theirs, bytes of an entry, their segment.
    """
    import numpy  # vLLM has it, a bare machine need not

    p = numpy.array(parts, dtype=numpy.int64)[:, None, :]
    r = numpy.array(runs(ours, theirs), dtype=numpy.int64)[None, :, :]
    made = numpy.zeros((len(parts), r.shape[1]), dtype=numpy.dtype(kvferry.RANGE_FIELDS))
    made["local"] = p[..., 0] + r[..., 0] * p[..., 1]
    made["remote"] = p[..., 2] + r[..., 1] * p[..., 3]
    made["length"], made["count"] = p[..., 4], r[..., 2]
    made["local_stride"], made["remote_stride"] = r[..., 3] * p[..., 1], r[..., 4] * p[..., 3]
    made["segment"] = p[..., 5]
    return made.reshape(-1)
