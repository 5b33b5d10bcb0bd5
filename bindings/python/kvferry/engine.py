"""The transfer engine: segments, targets, batches, completions."""

from __future__ import annotations

import ctypes
import enum
import math
import select
import struct
import weakref
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from . import library

WRITE = 0
"""Local memory to the target."""
READ = 1
"""Target to local memory."""

BY_SIZE = 0
"""Batches of up to 32 KiB are urgent."""
BULK = 1
URGENT = 2
"""The batch may go past bulk to the same peer, up to 1 MiB."""

RANGE_FIELDS = [
    ("local", "<u8"),
    ("remote", "<u8"),
    ("length", "<u8"),
    ("count", "<u8"),
    ("local_stride", "<i8"),
    ("remote_stride", "<i8"),
    ("segment", "<u4"),
    ("reserved", "<u4"),
]
"""The fields of a range, as numpy.dtype takes them: an array of that type is submitted as it is."""

MOST_MESSAGE = 64 << 10
"""How long a message may be, in bytes."""

_RANGE = struct.Struct("=QQQQqqII")


class Code(enum.IntEnum):
    """What went wrong: KVF_ERR_... of kvferry.h."""

    OK = 0
    INVALID = -1
    HANDLE = -2
    FORKED = -3
    UNSUPPORTED = -4
    SPACE = -5
    INTERNAL = -6
    SYSTEM = -7
    CLOSED = -8
    NOT_REGISTERED = -9
    NO_PATH = -10
    UNREACHABLE = -11
    DEADLINE = -12
    CANCELED = -13
    BAD_KEY = -14
    BOUNDS = -15
    ACCESS = -16
    UNCONFIRMED = -17
    BUSY = -18
    PROTOCOL = -19


class Error(Exception):
    """What the library says went wrong, with its code."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = _code(code)


def _code(n: int) -> Code | int:
    return Code(n) if n in Code._value2member_map_ else n  # of a later library


def build() -> str:
    """The commit that the library was built of."""
    return library.load().kvf_build().decode()


@dataclass(frozen=True)
class Range:
    """Count pieces of length bytes, at equal distances in both memories.

    local is an address in registered memory, remote an offset in the target's segment of that number.
    """

    local: int
    remote: int
    length: int
    count: int = 1
    local_stride: int = 0
    remote_stride: int = 0
    segment: int = 0


@dataclass(frozen=True)
class Completion:
    """How a batch ended."""

    batch: int
    user_data: int
    bytes: int
    elapsed: float
    """Seconds from its submission."""
    error: Error | None
    """None if all bytes have arrived."""


@dataclass(frozen=True)
class Message:
    """Bytes that came with a peer's batch, once all of the batch's bytes were there."""

    sender: str
    """The name of the peer's engine: what it says of itself."""
    segment: str
    """The name of the first segment of the peer's target."""
    data: bytes


@dataclass(frozen=True)
class Rail:
    """What one rail has done so far; kvferry.h says what the counts are."""

    name: str
    address: str
    written: int
    read: int
    slices: int
    errors: int
    retries: int
    resent: int
    in_flight: int
    rate: int
    dials: int
    dial_errors: int
    connections: int
    paths: int
    paths_up: int
    downs: int


class Segment:
    """Registered memory. It stays alive, and a bytearray cannot be resized, until the segment is closed."""

    def __init__(self, engine: Engine, handle: int, address: int, length: int):
        self.engine, self.handle, self.address, self.length = engine, handle, address, length

    def close(self) -> None:
        """Gives the memory back. Waits for batches that use it; closing again does nothing."""
        self.engine._deregister(self.handle)

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Target:
    """A peer's segments, to be written and read."""

    def __init__(self, engine: Engine, handle: int):
        self.engine, self.handle = engine, handle

    def close(self) -> None:
        """Lets the connections go that nothing else uses. Closing again does nothing."""
        self.engine._disconnect(self.handle)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """A transfer engine over rails, "tcp/eth0,rdma/mlx5_0" or a list of them.

    Its methods may be called from any thread. None waits for a peer but the close methods and wait. An engine that
    is not closed is closed when nothing refers to it any more, or at the end of the program. It must not
    be used in a process that was forked with it: that is an Error with Code.FORKED.
    """

    def __init__(
        self,
        rails: str | Sequence[str],
        *,
        selection: str | None = None,
        matrix: str | None = None,
        log: str | None = None,
        timeout: float | None = None,
        slice_bytes: int = 0,
        name: str | None = None,
    ):
        """selection is "affinity", "static", "round-robin" or "single"; matrix a file that says which NIC is near which
        memory; log the lowest level that goes to standard error; timeout, in seconds, that of batches without their own,
        30 by default; slice_bytes the most that goes over one rail in one operation, 1 MiB by default; name what
        peers are told with messages.
        """
        self._lib = library.load()
        options = library.EngineOptions(
            struct_size=ctypes.sizeof(library.EngineOptions),
            timeout_ms=_milliseconds(timeout),
            rails=_text(rails if isinstance(rails, str) else ",".join(rails)),
            selection=_text(selection),
            matrix=_text(matrix),
            log=_text(log),
            slice_bytes=slice_bytes,
            name=_text(name),
        )
        handle = ctypes.c_uint64()
        self._check(self._lib.kvf_engine_open(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle.value
        self._descriptor: int | None = None
        self._memory: dict[int, Any] = {}  # of segments that are open: keeps buffers alive
        self._finalizer = weakref.finalize(self, _close, self._lib, self.handle, self._memory)

    def close(self) -> None:
        """Ends all batches and closes all segments and targets. Closing again does nothing."""
        self._descriptor = None
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(
        self,
        memory: Any,
        length: int | None = None,
        *,
        name: str | None = None,
        location: str | None = None,
        private: bool = False,
    ) -> Segment:
        """Makes memory a segment: an object with the buffer protocol that can be written (bytearray, mmap, numpy
        array, memoryview), or an address and its length in bytes, which must stay mapped until the segment is closed.

        name is for errors, location what the memory is near, "cpu:0" or "cuda:1". Peers cannot reach private memory.
        """
        if isinstance(memory, int):
            if length is None:
                raise TypeError("an address needs a length")
            address, kept = memory, None
        else:
            view = memoryview(memory)
            if view.readonly or not view.c_contiguous:
                raise TypeError("memory to register must be writable and contiguous")
            if length is not None and length != view.nbytes:
                raise ValueError(f"a buffer of {view.nbytes} bytes, and length is {length}: slice a memoryview of it")
            length = view.nbytes
            kept = (ctypes.c_char * length).from_buffer(view)
            address = ctypes.addressof(kept)
        return self._register(kept, address, length, name, location, private)

    def register_descriptor(
        self,
        descriptor: int,
        address: int,
        length: int,
        *,
        offset: int = 0,
        dmabuf: bool = False,
        name: str | None = None,
        location: str | None = None,
        private: bool = False,
    ) -> Segment:
        """Makes length bytes of a memfd a segment, or of a dma-buf, a GPU's memory, which moves over RDMA alone.

        offset is where they begin, and need not be aligned. address is what ranges call the first of them: where the
        caller has them, as no other registered memory may be there. The descriptor may be closed at once. A memfd is sealed against
        shrinking, and must not be one that cannot be: make it with os.memfd_create(name, os.MFD_ALLOW_SEALING).
        """
        return self._register(None, address, length, name, location, private, kind=1 if dmabuf else 2, descriptor=descriptor, offset=offset)

    def _register(
        self, kept: Any, address: int, length: int, name: str | None, location: str | None, private: bool, **descriptor: int
    ) -> Segment:
        m = library.Memory(
            struct_size=ctypes.sizeof(library.Memory),
            address=address,
            length=length,
            name=_text(name),
            location=_text(location),
            flags=1 if private else 0,
            **descriptor,
        )
        handle = ctypes.c_uint64()
        self._check(self._lib.kvf_register(self.handle, ctypes.byref(m), ctypes.byref(handle)))
        self._memory[handle.value] = kept
        return Segment(self, handle.value, address, length)

    def _deregister(self, handle: int) -> None:
        if handle in self._memory:
            code = self._lib.kvf_deregister(self.handle, handle)
            if code not in (Code.OK, Code.HANDLE):
                self._check(code)
            self._memory.pop(handle, None)

    def advertise(self, *segments: Segment) -> bytes:
        """What a peer needs to read and write segments: ASCII text without newlines."""
        handles = (ctypes.c_uint64 * len(segments))(*(s.handle for s in segments))
        length = ctypes.c_size_t(4096)
        while True:
            buffer = ctypes.create_string_buffer(length.value)
            code = self._lib.kvf_advertise(self.handle, handles, len(segments), buffer, len(buffer), ctypes.byref(length))
            if code != Code.SPACE:
                self._check(code)
                return buffer.raw[: length.value]

    def connect(self, advertisement: bytes) -> Target:
        """Opens a peer's segments. Does not wait: whether the peer can be reached a batch finds out."""
        advertisement, handle = _bytes("an advertisement", advertisement), ctypes.c_uint64()
        self._check(self._lib.kvf_connect(self.handle, advertisement, len(advertisement), ctypes.byref(handle)))
        return Target(self, handle.value)

    def _disconnect(self, handle: int) -> None:
        code = self._lib.kvf_disconnect(self.handle, handle)
        if code != Code.HANDLE:
            self._check(code)

    def submit(
        self,
        target: Target,
        op: int,
        ranges: Iterable[Range] | Any,
        *,
        user_data: int = 0,
        timeout: float | None = None,
        priority: int = BY_SIZE,
        tag: str | None = None,
        message: bytes | None = None,
    ) -> int:
        """Starts a batch, WRITE or READ, and returns its number. Does not wait: poll has its completion.

        ranges are Range objects, or an array of them by the buffer protocol, as numpy makes of RANGE_FIELDS: that is faster
        for many. They are the caller's again when submit returns. user_data comes back with the completion, timeout is
        in seconds, and tag names the serving request in errors. message is for the peer, who receives it once all ranges
        are done, WRITE or READ: up to 64 KiB. A batch without ranges is its message. Code.BUSY: too many completions wait to be
        polled; in a completion, the peer does not receive its messages, and this one has not come.
        """
        try:
            view = memoryview(ranges)
        except TypeError:
            view = memoryview(
                b"".join(_RANGE.pack(r.local, r.remote, r.length, r.count, r.local_stride, r.remote_stride, r.segment, 0) for r in ranges)
            )
        if view.nbytes % _RANGE.size or not view.c_contiguous:
            raise ValueError(f"ranges of {view.nbytes} bytes: make a contiguous array of RANGE_FIELDS, {_RANGE.size} bytes each")
        address, _kept = _address(view)
        if message is not None:
            message = _bytes("a message", message)
        options = library.BatchOptions(
            struct_size=ctypes.sizeof(library.BatchOptions),
            timeout_ms=_milliseconds(timeout),
            user_data=user_data,
            tag=_text(tag),
            priority=priority,
            message=None if message is None else ctypes.cast(ctypes.c_char_p(message), ctypes.c_void_p),
            message_length=len(message or b""),
        )
        handle = ctypes.c_uint64()
        self._check(
            self._lib.kvf_submit(
                self.handle, target.handle, op, address, view.nbytes // _RANGE.size, ctypes.byref(options), ctypes.byref(handle)
            )
        )
        return handle.value

    def cancel(self, batch: int) -> None:
        """Ends a batch early. Its completion comes soon; of one that has ended it is there already."""
        self._check(self._lib.kvf_cancel(self.handle, batch))

    def poll(self, most: int = 256) -> list[Completion]:
        """Takes completions, oldest first, at most so many. Each batch has one. Does not wait."""
        array = (library.Completion * most)()
        n = self._check(self._lib.kvf_poll(self.handle, array, ctypes.sizeof(library.Completion), most))
        return [
            Completion(c.batch, c.user_data, c.bytes, c.elapsed_ns / 1e9, Error(c.code, c.error.decode(errors="replace")) if c.code else None)
            for c in array[:n]
        ]

    def receive(self) -> list[Message]:
        """Takes the messages that have come with peers' batches, each exactly once, oldest first. Does not wait."""
        received = []
        letter, buffer = library.Message(), ctypes.create_string_buffer(MOST_MESSAGE)
        while self._check(self._lib.kvf_receive(self.handle, ctypes.byref(letter), ctypes.sizeof(letter), buffer, len(buffer))):
            received.append(Message(letter.sender.decode(errors="replace"), letter.segment.decode(errors="replace"), buffer.raw[: letter.length]))
        return received

    def fileno(self) -> int:
        """A descriptor that is readable while something waits to be polled or received, for select and asyncio. Do not read it."""
        if self._descriptor is None:
            self._descriptor = self._check(self._lib.kvf_descriptor(self.handle))
        return self._descriptor

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until something can be polled or received, for at most timeout seconds; False if nothing can. Python's signal handlers run meanwhile."""
        p = select.poll()
        p.register(self.fileno(), select.POLLIN)
        return bool(p.poll(None if timeout is None else math.ceil(timeout * 1000)))

    def rails(self) -> list[Rail]:
        """What each rail has done so far."""
        most = 8
        while True:
            array = (library.Rail * most)()
            n = self._check(self._lib.kvf_rails(self.handle, array, ctypes.sizeof(library.Rail), most))
            if n <= most:
                return [Rail(*(v.decode() if isinstance(v, bytes) else v for v in (getattr(r, f) for f, _ in r._fields_))) for r in array[:n]]
            most = n

    def _check(self, result: int) -> int:
        if result < 0:
            raise Error(result, self._lib.kvf_error().decode(errors="replace"))
        return result


def _close(lib: ctypes.CDLL, handle: int, memory: dict[int, Any]) -> None:
    lib.kvf_engine_close(handle)  # of a forked child, which has no engine, does nothing
    memory.clear()


def _bytes(what: str, value: Any) -> bytes:
    """The value, of a parameter that C takes as a pointer: a str has none."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what} is bytes, not {type(value).__name__}: encode text")
    return bytes(value)


def _text(s: str | None) -> bytes | None:
    return None if s is None else s.encode()


def _milliseconds(seconds: float | None) -> int:
    """0, the default, for None; and at least 1, as 0 is the default."""
    return 0 if seconds is None else max(1, math.ceil(seconds * 1000))


def _address(view: memoryview) -> tuple[int | None, Any]:
    """Where a buffer is, and what keeps it there."""
    if view.nbytes == 0:
        return None, None
    if view.readonly:
        kept = ctypes.c_char_p(bytes(view))
        return ctypes.cast(kept, ctypes.c_void_p).value, kept
    kept = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(kept), kept
