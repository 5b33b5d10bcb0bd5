"""libkvferry as ctypes has it: kvferry.h, declaration by declaration."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

VERSION_MAJOR = 1
VERSION_MINOR = 0


class EngineOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("timeout_ms", c_uint32),
        ("rails", c_char_p),
        ("selection", c_char_p),
        ("matrix", c_char_p),
        ("log", c_char_p),
        ("slice_bytes", c_uint64),
        ("name", c_char_p),
    ]


class Memory(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("address", c_void_p),
        ("length", c_uint64),
        ("name", c_char_p),
        ("location", c_char_p),
        ("flags", c_uint32),
        ("descriptor", c_int32),
        ("offset", c_uint64),
    ]


class Range(Structure):
    _fields_ = [
        ("local", c_uint64),
        ("remote", c_uint64),
        ("length", c_uint64),
        ("count", c_uint64),
        ("local_stride", c_int64),
        ("remote_stride", c_int64),
        ("segment", c_uint32),
        ("reserved", c_uint32),
    ]


class BatchOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("timeout_ms", c_uint32),
        ("user_data", c_uint64),
        ("tag", c_char_p),
        ("priority", c_uint32),
        ("reserved", c_uint32),
        ("message", c_void_p),
        ("message_length", c_uint64),
    ]


class Completion(Structure):
    _fields_ = [
        ("batch", c_uint64),
        ("user_data", c_uint64),
        ("bytes", c_uint64),
        ("elapsed_ns", c_uint64),
        ("code", c_int32),
        ("reserved", c_uint32),
        ("error", c_char * 256),
    ]


class Message(Structure):
    _fields_ = [
        ("length", c_uint64),
        ("sender", c_char * 256),
        ("segment", c_char * 256),
    ]


class Rail(Structure):
    _fields_ = [
        ("name", c_char * 64),
        ("address", c_char * 128),
        ("written", c_uint64),
        ("read", c_uint64),
        ("slices", c_uint64),
        ("errors", c_uint64),
        ("retries", c_uint64),
        ("resent", c_uint64),
        ("in_flight", c_uint64),
        ("rate", c_uint64),
        ("dials", c_uint64),
        ("dial_errors", c_uint64),
        ("connections", c_uint64),
        ("paths", c_uint64),
        ("paths_up", c_uint64),
        ("downs", c_uint64),
    ]


_HANDLE = c_uint64

# Each function of kvferry.h: what it returns and takes.
FUNCTIONS = {
    "kvf_version": (c_uint32,),
    "kvf_build": (c_char_p,),
    "kvf_error": (c_char_p,),
    "kvf_engine_open": (c_int, POINTER(EngineOptions), POINTER(_HANDLE)),
    "kvf_engine_close": (c_int, _HANDLE),
    "kvf_register": (c_int, _HANDLE, POINTER(Memory), POINTER(_HANDLE)),
    "kvf_deregister": (c_int, _HANDLE, _HANDLE),
    "kvf_advertise": (c_int, _HANDLE, POINTER(_HANDLE), c_size_t, c_char_p, c_size_t, POINTER(c_size_t)),
    "kvf_connect": (c_int, _HANDLE, c_char_p, c_size_t, POINTER(_HANDLE)),
    "kvf_disconnect": (c_int, _HANDLE, _HANDLE),
    "kvf_submit": (c_int, _HANDLE, _HANDLE, c_int, c_void_p, c_size_t, POINTER(BatchOptions), POINTER(_HANDLE)),
    "kvf_cancel": (c_int, _HANDLE, _HANDLE),
    "kvf_poll": (c_int, _HANDLE, POINTER(Completion), c_size_t, c_size_t),
    "kvf_receive": (c_int, _HANDLE, POINTER(Message), c_size_t, c_void_p, c_size_t),
    "kvf_descriptor": (c_int, _HANDLE),
    "kvf_rails": (c_int, _HANDLE, POINTER(Rail), c_size_t, c_size_t),
}


@functools.lru_cache(maxsize=None)
def load() -> ctypes.CDLL:
    """The library: the file that KVFERRY_LIBRARY names, or the one beside this module.

    It is loaded when it is first needed, and not before: a process that forks should do so earlier.
    """
    path = os.environ.get("KVFERRY_LIBRARY") or str(pathlib.Path(__file__).with_name("libkvferry.so"))
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"{e}; build it with make lib, and say where it is: KVFERRY_LIBRARY=bin/libkvferry.so") from e
    needs = f"this package needs {VERSION_MAJOR}.{VERSION_MINOR}: take both from one build, of make lib or a wheel, and have KVFERRY_LIBRARY name that library"
    if not hasattr(lib, "kvf_version"):
        raise ImportError(f"{path} is not kvferry's library, of which {needs}")
    lib.kvf_version.restype = c_uint32
    version = lib.kvf_version()
    lacking = [name for name in FUNCTIONS if not hasattr(lib, name)]
    if version >> 16 != VERSION_MAJOR or version & 0xFFFF < VERSION_MINOR or lacking:
        without = f" without {lacking[0]}" if lacking else ""
        raise ImportError(f"{path} has version {version >> 16}.{version & 0xFFFF} of the interface{without}, and {needs}")
    for name, (result, *arguments) in FUNCTIONS.items():
        f = getattr(lib, name)
        f.restype, f.argtypes = result, arguments
    return lib
