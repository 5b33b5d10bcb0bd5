"""A GPU for tests, in the CPU's memory, behind torch.cuda's names: as slow as one may be.

What is put on a stream is done when somebody waits for it, or behind it, and not before. So whoever does not wait finds
old bytes.
"""

import collections
import contextlib
import ctypes
import os
import unittest.mock

import torch


class Event:
    def __init__(self, stream):
        self.stream, self.behind = stream, stream.begun

    def query(self):
        return self.stream.ended >= self.behind

    def synchronize(self):
        while not self.query():
            self.stream.one()


class Stream:
    def __init__(self, device=None):
        self.queue, self.begun, self.ended = collections.deque(), 0, 0

    def put(self, do):
        self.queue.append(do)
        self.begun += 1

    def one(self):
        self.queue.popleft()()
        self.ended += 1

    def record_event(self):
        return Event(self)

    def wait_stream(self, stream):
        self.put(Event(stream).synchronize)

    def synchronize(self):
        Event(self).synchronize()


class Tensor(torch.Tensor):
    """What is on the GPU, by as_subclass. A copy to or from it is put on the current stream."""

    device = torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.copy_:
            return super().__torch_function__(func, types, args, kwargs or {})
        assert kwargs == {"non_blocking": True}
        to, source = (x.as_subclass(torch.Tensor) for x in args)
        GPU.here.copies += 1
        GPU.here.current.put(lambda: to.copy_(source))


class GPU:
    """vLLM computes on `compute`. pins is how many bytes may be pinned, copies how many were begun."""

    here = None

    def __init__(self, test, pins=1 << 30):
        GPU.here = self
        self.compute = self.current = Stream()
        self.pins, self.pinned, self.copies = pins, {}, 0
        names = {"Stream": Stream, "stream": self.on, "current_stream": lambda device: self.current, "cudart": lambda: self}
        patch = unittest.mock.patch.multiple("torch.cuda", **names)
        patch.start()
        test.addCleanup(patch.stop)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def cudaHostRegister(self, address, length, flags):
        self.pinned[address] = length
        return 0 if length <= self.pins else 2

    def cudaHostUnregister(self, address):
        del self.pinned[address]


class Driver:
    """libcuda.so.1. allocations are sizes and descriptors of memory, by where it begins."""

    def __init__(self, test):
        self.allocations, self.given, self.errors, self.there, library = {}, [], (0, 0), True, ctypes.CDLL
        patch = unittest.mock.patch("ctypes.CDLL", lambda name: self if name == "libcuda.so.1" and self.there else library(name))
        patch.start()
        test.addCleanup(patch.stop)

    def cuMemGetAddressRange_v2(self, base, size, address):
        for begin, (length, _) in self.allocations.items():
            if begin <= address.value < begin + length:
                base._obj.value, size._obj.value = begin, length
                return self.errors[0]
        return 1

    def cuMemGetHandleForAddressRange(self, handle, address, size, kind, flags):
        length, descriptor = self.allocations[address.value]
        if self.errors[1] or (size.value, kind, flags.value) != (-(-length // 4096) * 4096, 1, 0):
            return self.errors[1] or 1
        handle._obj.value = os.dup(descriptor)
        self.given.append(handle._obj.value)
        return 0
