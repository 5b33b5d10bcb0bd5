"""A rank's KV and the tables beside it, registered with the engine."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field
from typing import Any, Callable, Container, Sequence

import kvferry

from . import layout
from .batches import Batches
from .checksums import Checksums
from .device import Host, device_of
from .holds import SLOTS
from .ledger import Ledger

WINDOWS = 256
"""Peers that are told of the memory at a time, to write. What another needs is taken from one that does not write."""


@dataclass
class Buffer:
    """One buffer with all layers."""

    address: int
    """Of what is registered."""
    length: int
    layers: list[layout.Layer]
    blocks: int
    device: Host = field(default_factory=Host)

    @classmethod
    def of(cls, kv_caches: dict[str, Any], blocks: int, gpu: str) -> Buffer:
        """What vLLM has given for KV: tensors of blocks x heads x tokens x values, a layer each, in one buffer. gpu is Config's."""
        first = next(iter(kv_caches.values()))
        storage = first.untyped_storage()
        layers = []
        for name, tensor in kv_caches.items():
            if tensor.untyped_storage().data_ptr() != storage.data_ptr():
                raise NotImplementedError(f"the KV of {name} is not in the buffer of the other layers: KvferryConnector needs vLLM 0.32's one buffer")
            split = tensor.shape[0] // blocks  # blocks of the kernels, in one of vLLM's
            if tensor.shape[0] != blocks * split or not tensor[0].is_contiguous():
                raise NotImplementedError(f"the KV of {name} has the shape {tuple(tensor.shape)} and {blocks} blocks: KvferryConnector needs the layout LBHNC")
            stride, page = tensor.stride(0) * tensor.element_size(), tensor[0].nbytes
            if split > 1 and stride != page:
                raise NotImplementedError(f"the KV of {name} has blocks of kernels with gaps: KvferryConnector needs the layout LBHNC")
            layers.append(layout.Layer(name, tensor.data_ptr() - storage.data_ptr(), stride * split, page * split))
        device = device_of(first, layers, gpu)
        return cls(device.address, storage.nbytes(), layers, blocks, device)


@dataclass(frozen=True)
class Window:
    """A registration of the KV for one peer, which is told of it and writes."""

    segment: kvferry.Segment
    advertisement: str


class Memory:
    def __init__(self, engine: kvferry.Engine, buffer: Buffer, ended: array):
        """ended is the table of holds.py."""
        self.engine, self.buffer = engine, buffer
        self.layers, self.planes = buffer.layers, layout.planes(buffer.layers)
        self.block_bytes = sum(layer.page for layer in buffer.layers)
        self.checksums = Checksums(buffer.address, buffer.length, [(layer.offset, layer.stride, layer.page) for layer in buffer.layers], buffer.blocks)
        self.digests = engine.register(self.checksums.table, name="checksums")
        kv = self._register()
        self.advertisement = engine.advertise(kv, self.digests, engine.register(ended, name="holds")).decode()
        self.words = array("Q", bytes(layout.WORD * SLOTS))  # for what is read of a peer's `ended`
        self.word = engine.register(self.words, name="words", private=True).address
        self.free_words = list(range(SLOTS))
        self.windows: dict[str, Window] = {}  # by the advertisement of who writes, the one opened first first
        self.local: kvferry.Segment | None = None

    def ranges(self, planes: Sequence[Sequence[int]], layers: Sequence[int] | None, ours: Sequence[int], theirs: Sequence[int], checksums: bool) -> Any:
        """Ranges of blocks of ours and a peer's: of these layers, None for all, and of the checksums or not."""
        base, places = self.buffer.address, layout.places(planes)
        parts = []
        for k in range(len(self.layers)) if layers is None else layers:
            layer, (offset, stride) = self.layers[k], places[k]
            parts.append((base + layer.offset, layer.stride, offset, stride, layer.page, layout.KV))
        if checksums:
            parts.append((self.digests.address, layout.WORD, 0, layout.WORD, layout.WORD, layout.DIGESTS))
        return layout.ranges(parts, ours, theirs)

    def read_word(self, batches: Batches, advertisement: str, hold: int, then: Callable[[str, int], Any], timeout: float, tag: str) -> None:
        """Reads the word of a peer's `ended` that tells of a hold; then has the error, or the word."""
        word = self.free_words.pop()

        def read(error: str, _: Any) -> None:
            self.free_words.append(word)
            then(error, self.words[word])

        at = kvferry.Range(self.word + layout.WORD * word, layout.WORD * (hold % SLOTS), layout.WORD, segment=layout.ENDED)
        batches.submit(kvferry.READ, advertisement, [at], read, timeout=timeout, tag=tag)

    def land(self, ledger: Ledger, request: str, error: str, aborted: bool) -> None:
        """A transfer is over: its good blocks become vLLM's, and then the ledger has its end."""
        self.buffer.device.land(ledger.good(request, error), lambda: ledger.finish(request, error, aborted))

    def open(self, peer: str, writing: Container[str]) -> str:
        """The advertisement for a peer that is to write. Those in `writing` keep what they were told; others may lose it."""
        if peer not in self.windows:
            for other in [p for p in self.windows if p not in writing][: len(self.windows) + 1 - WINDOWS]:
                self.fence(other)
            before, window = self.local, self._register()
            self.windows[peer] = Window(window, self.engine.advertise(window, self.digests).decode())
            # Our own batches use what was registered last, and a segment is closed when they have ended: a fence must not wait for that.
            self.local = self._register(private=True)
            if before:
                threading.Thread(target=before.close, name="kvferry-close", daemon=True).start()
        return self.windows[peer].advertisement

    def fence(self, peer: str) -> None:
        """The peer writes no more when this returns, nor later."""
        if window := self.windows.pop(peer, None):
            window.segment.close()

    def _register(self, private: bool = False) -> kvferry.Segment:
        """All of the KV, once more."""
        return self.buffer.device.register(self.engine, self.buffer.address, self.buffer.length, private)
