"""Where a rank's KV is, and how the rails come to it: in the CPU's memory they have it; a GPU's is copied to host memory and back,
or the NICs reach it.

A GPU does what it is told later, in the order of a stream, and an event says how far it has come. vLLM computes on the stream that
is current; copies have one of their own, beside it.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from typing import Any, Callable, Iterable, Iterator, Sequence

import kvferry

from . import layout
from .config import DIRECT, ConfigError

DMA_BUF = 1
"""What cuMemGetHandleForAddressRange gives."""


class Host:
    """KV in the CPU's memory: computed means there, and received means landed."""

    copies = False
    """Whether the rails have a copy of the KV, that has to be made of all that is handed over."""

    def __init__(self, address: int = 0):
        self.address = address  # of what is registered
        self.saving: deque[tuple[Any, Sequence[int]]] = deque()
        self.landing: deque[tuple[Any, Callable[[], None]]] = deque()

    def register(self, engine: kvferry.Engine, address: int, length: int, private: bool = False) -> kvferry.Segment:
        return engine.register(address, length, name="kv", private=private)

    def save(self, layers: Sequence[int], blocks: Iterable[int]) -> None:
        """What vLLM has started computes these layers of blocks. saved says when peers can have them."""
        self.saving.append((self._save(layers, blocks), layers))

    def saved(self, wait: bool) -> Iterator[Sequence[int]]:
        """Layers that peers can have, each once: all that were saved, or those that are there by now."""
        return _ended(self.saving, wait)

    def land(self, blocks: Sequence[int], then: Callable[[], None]) -> None:
        """Blocks have come from a peer: does what is to be done when vLLM can have them. vLLM's scheduler gives no blocks to
        be received that work under way still writes."""
        self.landing.append((self._land(blocks), then))
        self.landed(wait=False)

    def landed(self, wait: bool) -> None:
        """Does what is to be done of blocks that vLLM can have by now, or waits until it can have all."""
        for then in _ended(self.landing, wait):
            then()

    def close(self) -> None:
        """The engine is closed."""

    def _save(self, layers: Sequence[int], blocks: Iterable[int]) -> Any:
        """The event behind which they are there; None if they are."""

    def _land(self, blocks: Sequence[int]) -> Any:
        """Likewise."""


class Staged(Host):
    """KV on a GPU, and a mirror of it in host memory, pinned, with each byte at the same place. The rails have the mirror."""

    copies = True

    def __init__(self, tensor: Any, layers: Sequence[layout.Layer]):
        """Of the buffer that a tensor is in."""
        import torch

        self.torch, self.device, self.layers = torch, tensor.device, layers
        length = tensor.untyped_storage().nbytes()
        self.memory = tensor.view(torch.uint8).as_strided((length,), (1,), 0)
        try:  # torch's own pinned memory may be rounded up to a power of two
            self.mirror: Any = torch.empty(length, dtype=torch.uint8)
            if error := int(torch.cuda.cudart().cudaHostRegister(self.mirror.data_ptr(), length, 0)):
                raise RuntimeError(f"cudaHostRegister: error {error}")
        except (RuntimeError, MemoryError) as e:
            raise ConfigError(
                "gpu",
                f'"staged" pins {length / 1e9:.1f} GB of host memory, as much as the KV has on {self.device}, and cannot have it: {e}: '
                f'give vLLM more memory, or less KV (--kv-cache-memory-bytes), or use "{DIRECT}" with rails over RDMA',
            ) from e
        self.stream = torch.cuda.Stream(self.device)
        super().__init__(self.mirror.data_ptr())

    def register(self, engine: kvferry.Engine, address: int, length: int, private: bool = False) -> kvferry.Segment:
        return engine.register(address, length, name="kv", location=str(self.device), private=private)

    def close(self) -> None:
        self.stream.synchronize()
        if self.mirror is not None:
            self.torch.cuda.cudart().cudaHostUnregister(self.address)
        self.mirror = None

    def _save(self, layers: Sequence[int], blocks: Iterable[int]) -> Any:
        # The worker waits for it before the step is over: no later work of vLLM's overtakes it.
        self.stream.wait_stream(self.torch.cuda.current_stream(self.device))
        return self._copy(self.mirror, self.memory, layers, blocks)

    def _land(self, blocks: Sequence[int]) -> Any:
        return self._copy(self.memory, self.mirror, range(len(self.layers)), blocks)

    def _copy(self, to: Any, source: Any, layers: Sequence[int], blocks: Iterable[int]) -> Any:
        some = sorted(set(blocks))
        with self.torch.cuda.stream(self.stream):
            for k in layers:
                for piece in _pieces(self.layers[k], some):
                    to[piece].copy_(source[piece], non_blocking=True)
        return self.stream.record_event()


class Direct(Host):
    """KV on a GPU that NICs reach, by a dma-buf."""

    def __init__(self, tensor: Any):
        import torch

        self.torch, self.device = torch, tensor.device
        super().__init__(tensor.untyped_storage().data_ptr())

    def register(self, engine: kvferry.Engine, address: int, length: int, private: bool = False) -> kvferry.Segment:
        try:
            descriptor, offset = _dma_buf(address)
            try:
                return engine.register_descriptor(descriptor, address, length, offset=offset, dmabuf=True, name="kv", location=str(self.device), private=private)
            finally:
                os.close(descriptor)  # the library has one of its own
        except (OSError, AttributeError, kvferry.Error) as e:
            raise ConfigError("gpu", f'"{DIRECT}" needs memory of {self.device} that a NIC can reach: {e}: use "staged"') from e

    def _save(self, layers: Sequence[int], blocks: Iterable[int]) -> Any:
        return self.torch.cuda.current_stream(self.device).record_event()


def device_of(tensor: Any, layers: Sequence[layout.Layer], gpu: str) -> Host:
    """What KV is on, by one of its tensors and Config.gpu."""
    if tensor.device.type == "cpu":
        return Host(tensor.untyped_storage().data_ptr())
    if tensor.device.type != "cuda":
        raise NotImplementedError(f"the KV is on {tensor.device}: KvferryConnector moves KV of CPUs, and of GPUs that torch calls cuda")
    return Direct(tensor) if gpu == DIRECT else Staged(tensor, layers)


def _ended(queue: deque[tuple[Any, Any]], wait: bool) -> Iterator[Any]:
    """Takes from a queue what is behind events that have come, oldest first; or all, and waits for each."""
    while queue and (wait or queue[0][0] is None or queue[0][0].query()):
        event, what = queue.popleft()
        if event is not None:
            event.synchronize()
        yield what


def _pieces(layer: layout.Layer, blocks: Iterable[int]) -> Iterator[slice]:
    """The bytes of blocks in ascending order, in as few pieces as there are without a gap."""
    begin = end = 0
    for block in blocks:
        at = layer.offset + block * layer.stride
        if at != end:
            if begin < end:
                yield slice(begin, end)
            begin = at
        end = at + layer.page
    if begin < end:
        yield slice(begin, end)


def _dma_buf(address: int) -> tuple[int, int]:
    """The GPU's allocation at an address, by CUDA's driver: a descriptor, the caller's to close, and where in it the address is."""
    driver = ctypes.CDLL("libcuda.so.1")
    base, size, descriptor = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int(-1)
    if error := driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)):
        raise OSError(f"cuMemGetAddressRange: error {error}")
    page = os.sysconf("SC_PAGESIZE")
    whole = ctypes.c_size_t(-(-size.value // page) * page)
    if error := driver.cuMemGetHandleForAddressRange(ctypes.byref(descriptor), base, whole, DMA_BUF, ctypes.c_ulonglong(0)):
        raise OSError(f"cuMemGetHandleForAddressRange: error {error}")
    return descriptor.value, address - base.value
