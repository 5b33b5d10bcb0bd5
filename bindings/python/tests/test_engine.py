"""The binding against the library: two engines of this process, and children for forks and signals."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import mmap
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import types
import unittest
import unittest.mock

import kvferry
from kvferry import library

HEADER = (pathlib.Path(__file__).parents[3] / "cmd" / "libkvferry" / "kvferry.h").read_text()


def open_engine(**options):
    return kvferry.Engine("127.0.0.1:0", log="off", **options)


class Pair(unittest.TestCase):
    """Two engines with a segment each, and a target on the first that is the second's."""

    def setUp(self):
        self.here, self.there = open_engine(), open_engine()
        self.addCleanup(self.here.close)
        self.addCleanup(self.there.close)
        self.ours, self.theirs = bytearray(os.urandom(1 << 16)), mmap.mmap(-1, 1 << 16)
        self.local = self.here.register(self.ours, name="local")
        self.remote = self.there.register(self.theirs, name="kv")
        self.target = self.here.connect(self.there.advertise(self.remote))

    def finish(self, engine=None):
        """The completion of the only batch."""
        engine = engine or self.here
        self.assertTrue(engine.wait(60), "nothing to poll after a minute")
        (c,) = engine.poll()
        return c


class TestTransfer(Pair):
    def test_strided(self):
        r = kvferry.Range(self.local.address, 7, 100, count=50, local_stride=300, remote_stride=200)
        batch = self.here.submit(self.target, kvferry.WRITE, [r], user_data=42)
        c = self.finish()
        self.assertEqual((c.batch, c.user_data, c.bytes, c.error), (batch, 42, 5000, None))
        self.assertGreater(c.elapsed, 0)
        want = bytearray(1 << 16)
        for k in range(50):
            want[7 + 200 * k : 107 + 200 * k] = self.ours[300 * k : 300 * k + 100]
        self.assertEqual(self.theirs[:], want)
        back = kvferry.Range(self.local.address + 40000, 7, 100, count=50, local_stride=100, remote_stride=200)
        self.here.submit(self.target, kvferry.READ, (r for r in [back]))
        self.assertIsNone(self.finish().error)
        self.assertEqual(self.ours[40000:45000], b"".join(self.ours[300 * k : 300 * k + 100] for k in range(50)))
        (rail,) = self.here.rails()
        self.assertEqual((rail.name, rail.written, rail.read, rail.paths_up), ("tcp/0", 5000, 5000, 1))

    def test_array(self):
        """Ranges as an array: 2,000 of them, as memory of numpy's would be."""
        packed = bytearray()
        for k in range(2000):
            packed += struct.pack("<QQQQqqII", self.local.address + 32 * k, 32 * (1999 - k), 16, 1, 0, 0, 0, 0)
        for ranges in (packed, bytes(packed), array.array("Q", packed)):
            self.theirs[:] = bytes(1 << 16)
            self.here.submit(self.target, kvferry.WRITE, ranges)
            self.assertIsNone(self.finish().error)
            for k in range(2000):
                self.assertEqual(self.theirs[32 * (1999 - k) :][:16], self.ours[32 * k :][:16])
        with self.assertRaisesRegex(ValueError, "RANGE_FIELDS"):
            self.here.submit(self.target, kvferry.WRITE, packed[:-1])
        try:
            import numpy
        except ImportError:
            return
        a = numpy.frombuffer(packed, dtype=numpy.dtype(kvferry.RANGE_FIELDS))
        self.here.submit(self.target, kvferry.WRITE, a)
        self.assertIsNone(self.finish().error)

    def test_address(self):
        """Memory by its address, which the library does not reach unless it is registered."""
        block = ctypes.create_string_buffer(b"a block of KV", 64)
        at = ctypes.addressof(block)
        r = [kvferry.Range(at, 0, 64)]
        with self.assertRaises(kvferry.Error) as e:
            self.here.submit(self.target, kvferry.WRITE, r)
        self.assertEqual(e.exception.code, kvferry.Code.NOT_REGISTERED)
        with self.here.register(at, 64, private=True) as segment:
            self.assertEqual((segment.address, segment.length), (at, 64))
            self.here.submit(self.target, kvferry.WRITE, r)
            self.assertIsNone(self.finish().error)
            with self.assertRaisesRegex(kvferry.Error, "private"):
                self.here.advertise(segment)
        self.assertEqual(self.theirs[:64], block.raw)

    def test_taken_away(self):
        """Memory that is unmapped or read-only is refused; what is taken away later fails the transfers that touch it."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        theirs = mmap.mmap(-1, 1 << 16)
        at = ctypes.addressof(ctypes.c_char.from_buffer(theirs))
        self.assertEqual(libc.mprotect(at, 1 << 16, mmap.PROT_READ), 0)
        with self.assertRaisesRegex(kvferry.Error, "read-only") as e:
            self.there.register(at, 1 << 16, name="taken")
        self.assertEqual(e.exception.code, kvferry.Code.INVALID)
        self.assertEqual(libc.mprotect(at, 1 << 16, mmap.PROT_READ | mmap.PROT_WRITE), 0)
        target = self.here.connect(self.there.advertise(self.there.register(at, 1 << 16, name="taken")))
        self.assertEqual(libc.mprotect(at, 1 << 16, 0), 0)
        for op in kvferry.WRITE, kvferry.READ:
            for length in 100, 1 << 15:
                self.here.submit(target, op, [kvferry.Range(self.local.address, 0, length)])
                error = self.finish().error
                self.assertEqual(error.code, kvferry.Code.SYSTEM)
                self.assertIn('"taken"', str(error))
        self.assertEqual(libc.mprotect(at, 1 << 16, mmap.PROT_READ | mmap.PROT_WRITE), 0)
        self.here.submit(self.target, kvferry.WRITE, [kvferry.Range(self.local.address, 0, 100)])
        self.assertIsNone(self.finish().error)

    def test_descriptor(self):
        """Memory of a memfd, which the caller may close; and a dma-buf, which does not move over TCP."""
        fd = os.memfd_create("shared", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 1 << 14)
        with mmap.mmap(fd, 0) as mine:
            at = ctypes.addressof(ctypes.c_char.from_buffer(mine))
            with self.assertRaises(kvferry.Error) as e:
                self.here.register_descriptor(fd, at, 100, dmabuf=True)
            self.assertEqual(e.exception.code, kvferry.Code.NO_PATH)
            self.assertIn("cannot move memory that is not mapped", str(e.exception))
            with self.here.register_descriptor(fd, at + 5000, 6000, offset=5000, private=True) as segment:
                os.close(fd)
                mine[10990:11000] = b"a block of"
                self.here.submit(self.target, kvferry.WRITE, [kvferry.Range(segment.address + 5990, 0, 10)])
                self.assertIsNone(self.finish().error)
                self.assertEqual(self.theirs[:10], b"a block of")
                self.here.submit(self.target, kvferry.READ, [kvferry.Range(segment.address, 2, 5)])
                self.assertIsNone(self.finish().error)
                self.assertEqual(mine[5000:5006], b"block\0")

    def test_messages(self):
        """Bytes for the peer, behind a WRITE, behind a READ and by themselves; with zeros, empty, and the longest."""
        sender = kvferry.Engine("127.0.0.1:0", log="off", name="prefill-0")
        self.addCleanup(sender.close)
        local = sender.register(bytearray(b"a block of KV"))
        target = sender.connect(self.there.advertise(self.remote))
        r = [kvferry.Range(local.address, 0, 13)]
        for op, ranges, message in (
            (kvferry.WRITE, r, b"wrote\0it"),
            (kvferry.READ, r, b""),
            (kvferry.WRITE, [], os.urandom(kvferry.MOST_MESSAGE)),
        ):
            sender.submit(target, op, ranges, message=message)
            self.assertTrue(self.there.wait(60))
            self.assertEqual(self.there.receive(), [kvferry.Message("prefill-0", "kv", message)])
            self.assertIsNone(self.finish(sender).error)
            self.assertFalse(self.there.wait(0))
        sender.submit(target, kvferry.WRITE, r, message=bytes(kvferry.MOST_MESSAGE + 1))
        self.assertEqual(self.finish(sender).error.code, kvferry.Code.INVALID)
        self.assertEqual(self.there.receive(), [])

    def test_threads(self):
        def submit():
            for k in range(100):
                self.here.submit(self.target, k % 2, [kvferry.Range(self.local.address + 64 * k, 64 * k, 64)])

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for t in threads:
            t.start()
        done = []
        while len(done) < 400:
            self.assertTrue(self.here.wait(60))
            done += self.here.poll(7)
        for t in threads:
            t.join()
        self.assertEqual([c.error for c in done if c.error], [])
        self.assertEqual(len({c.batch for c in done}), 400)
        self.assertFalse(self.here.wait(0))


class TestErrors(Pair):
    def test_ends(self):
        self.there.close()
        r = [kvferry.Range(self.local.address, 0, 64)]
        self.here.submit(self.target, kvferry.WRITE, r, timeout=0.01, tag="request 7")
        c = self.finish()
        self.assertEqual(c.error.code, kvferry.Code.DEADLINE)
        self.assertIn("request 7", str(c.error))
        batch = self.here.submit(self.target, kvferry.WRITE, r, timeout=3600)
        self.here.cancel(batch)
        self.assertEqual(self.finish().error.code, kvferry.Code.CANCELED)

    def test_bounds(self):
        self.here.submit(self.target, kvferry.READ, [kvferry.Range(self.local.address, (1 << 16) - 1, 2)])
        self.assertEqual(self.finish().error.code, kvferry.Code.BOUNDS)

    def test_closed(self):
        self.target.close()
        self.target.close()
        with self.assertRaisesRegex(kvferry.Error, "or it is closed: target") as e:
            self.here.submit(self.target, kvferry.WRITE, [])
        self.assertEqual(e.exception.code, kvferry.Code.HANDLE)
        self.here.close()
        self.here.close()
        self.local.close()
        for use in self.here.poll, self.here.wait, lambda: self.here.register(bytearray(8)):
            with self.assertRaisesRegex(kvferry.Error, "or it is closed: engine") as e:
                use()
            self.assertEqual(e.exception.code, kvferry.Code.HANDLE)

    def test_text(self):
        """What has to be bytes is a str."""
        with self.assertRaisesRegex(TypeError, "an advertisement is bytes, not str"):
            self.here.connect(self.there.advertise(self.remote).decode())
        with self.assertRaisesRegex(TypeError, "a message is bytes, not str"):
            self.here.submit(self.target, kvferry.WRITE, [], message="text")

    def test_memory(self):
        """A buffer is held while it is registered, and no longer."""
        with self.assertRaises(BufferError):
            self.ours.append(1)
        self.local.close()
        self.ours.append(1)
        for wrong in (b"read only", memoryview(bytearray(10))[::2]):
            with self.assertRaisesRegex(TypeError, "writable and contiguous"):
                self.here.register(wrong)
        with self.assertRaisesRegex(ValueError, "slice a memoryview"):
            self.here.register(bytearray(8), 4)
        with self.assertRaisesRegex(TypeError, "needs a length"):
            self.here.register(4096)

    def test_open(self):
        with self.assertRaisesRegex(kvferry.Error, "nosuch0") as e:
            kvferry.Engine(["tcp/nosuch0"])
        self.assertEqual(e.exception.code, kvferry.Code.INVALID)


def child(program):
    """Runs a program with two engines in it, and returns what it prints."""
    begin = """
        import kvferry, os, signal, sys, time
        here, there = (kvferry.Engine("127.0.0.1:0", log="off") for _ in range(2))
        ours, theirs = bytearray(b"a block of KV"), bytearray(13)
        local, remote = here.register(ours), there.register(theirs)
        target = here.connect(there.advertise(remote))
        def transfer():
            here.submit(target, kvferry.WRITE, [kvferry.Range(local.address, 0, 13)])
            assert here.wait(60)
            assert here.poll()[0].error is None and theirs == ours
            theirs[:] = bytes(13)
        transfer()
    """
    program = textwrap.dedent(begin) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)


class TestHost(unittest.TestCase):
    """What the library leaves to the process that it is in."""

    def test_fork(self):
        done = child("""
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                try:
                    here.poll()
                except kvferry.Error as e:
                    os._exit(0 if e.code == kvferry.Code.FORKED else 1)
                os._exit(2)
            assert os.waitpid(pid, 0)[1] == 0
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                sys.exit(0)  # with what is done at the end of a program
            assert os.waitpid(pid, 0)[1] == 0
            transfer()
        """)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_signals(self):
        done = child("""
            heard = []
            for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM):
                before = signal.getsignal(s)
                signal.signal(s, lambda n, _: heard.append(n))
                os.kill(os.getpid(), s)
                transfer()
                assert heard.pop() == s, (s, heard)
                signal.signal(s, before)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:
                pass
            r, w = os.pipe()
            os.close(r)
            try:
                os.write(w, b"x")
                sys.exit("no error")
            except BrokenPipeError:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            def late(*_):
                raise TimeoutError
            signal.signal(signal.SIGALRM, late)
            try:
                here.wait()
                sys.exit("the wait has ended")
            except TimeoutError:
                pass
            transfer()
        """)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_default_signals(self):
        done = child("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")
        self.assertEqual(done.returncode, -signal.SIGTERM)

    def test_faulthandler(self):
        done = child("import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(8)")
        self.assertEqual(done.returncode, -signal.SIGSEGV)
        self.assertIn("Fatal Python error: Segmentation fault", done.stderr)
        self.assertIn("string_at", done.stderr)

    def test_end(self):
        """A program that ends without closing anything does end, in time and in order."""
        done = child("here.submit(target, kvferry.READ, [kvferry.Range(local.address, 0, 13)] * 100)")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class TestLibrary(unittest.TestCase):
    """A library that is not this package's is refused, and by what is named."""

    def test_foreign(self):
        with unittest.mock.patch.dict(os.environ, KVFERRY_LIBRARY="libc.so.6"):
            with self.assertRaisesRegex(ImportError, f"libc.so.6 is not kvferry's library, of which this package needs {library.VERSION_MAJOR}"):
                library.load.__wrapped__()

    def test_other(self):
        own = library.VERSION_MAJOR << 16 | library.VERSION_MINOR
        for version, lacking, text in ((5, "", "version 0.5 of the interface, and"), (own + (1 << 16), "", "and this package needs"), (own, "kvf_rails", "without kvf_rails, and")):
            other = types.SimpleNamespace(**{name: lambda version=version: version for name in library.FUNCTIONS if name != lacking})
            with unittest.mock.patch("ctypes.CDLL", return_value=other), self.assertRaisesRegex(ImportError, text):
                library.load.__wrapped__()


class TestHeader(unittest.TestCase):
    """The binding says the same as kvferry.h."""

    def test_codes(self):
        codes = {name: int(n) for name, n in re.findall(r"\bKVF_ERR_(\w+) = (-\d+)", HEADER)}
        self.assertGreater(len(codes), 10)
        self.assertEqual({c.name: c.value for c in kvferry.Code if c}, codes)

    def test_functions(self):
        self.assertEqual(set(library.FUNCTIONS), set(re.findall(r"\b(kvf_\w+)\(", HEADER)))

    def test_structs(self):
        c_types = {
            "uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64,
            "kvf_batch": ctypes.c_uint64, "void *": ctypes.c_void_p, "const void *": ctypes.c_void_p, "const char *": ctypes.c_char_p, "char": ctypes.c_char,
        }  # fmt: skip
        structs = {
            "kvf_engine_options": library.EngineOptions, "kvf_memory": library.Memory, "kvf_range": library.Range,
            "kvf_batch_options": library.BatchOptions, "kvf_completion": library.Completion, "kvf_rail": library.Rail,
            "kvf_message": library.Message,
        }  # fmt: skip
        found = re.findall(r"typedef struct (\w+) \{(.*?)\n\}", HEADER, re.S)
        self.assertEqual({name for name, _ in found}, set(structs))
        for name, body in found:
            fields = []
            for kind, field, size in re.findall(r"^\t((?:const )?\w+ \*?)(\w+)(?:\[(\d+)\])?;", body, re.M):
                t = c_types[kind.strip()]
                if (name, field) == ("kvf_range", "local"):
                    t = ctypes.c_uint64  # an address, as a number
                fields.append((field, t * int(size) if size else t))
            self.assertEqual(structs[name]._fields_, fields, name)
        self.assertEqual(struct.calcsize("=QQQQqqII"), ctypes.sizeof(library.Range))
        self.assertEqual([f for f, _ in kvferry.RANGE_FIELDS], [f for f, _ in library.Range._fields_])
        self.assertEqual([f.name for f in dataclasses.fields(kvferry.Rail)], [f for f, _ in library.Rail._fields_])

    def test_version(self):
        version = re.search(r"VERSION_MAJOR (\d+)\n#define KVF_VERSION_MINOR (\d+)", HEADER).groups()
        self.assertEqual(version, (str(library.VERSION_MAJOR), str(library.VERSION_MINOR)))
        self.assertTrue(kvferry.build())


if __name__ == "__main__":
    unittest.main()
