"""The wheel's backend: versions, the tag, the list of files. What the wheel does once installed is checked by make wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import backend


class TestVersion(unittest.TestCase):
    def test_versions(self):
        """As Go orders them, Python's packages do."""
        for said, want in (
            ("v1.2.0", "1.2.0"),
            ("v1.2.0+dirty", "1.2.0+dirty"),
            ("v0.0.0-20261123052705-adc6fb3be96c", "0.0.0.dev20261123052705+adc6fb3be96c"),
            ("v1.2.1-0.20261123052705-adc6fb3be96c+dirty", "1.2.1.dev20261123052705+adc6fb3be96c.dirty"),
            ("v0.3.0-rc.1", "0.3.0rc1"),
            ("v0.3.0-rc.1.0.20261123060844-0a0177b2a7d0", "0.3.0rc2.dev20261123060844+0a0177b2a7d0"),
            ("v0.3.0-beta2", "0.3.0b2"),
            ("03824b06a3d1-modified", "0+03824b06a3d1.modified"),
            ("unknown", "0+unknown"),
        ):
            self.assertEqual(backend.pep440(said), want)


@unittest.skipUnless(shutil.which(backend.GO), "SKIPPED: no Go")
class TestBuild(unittest.TestCase):
    def test_portable(self):
        """What is set for this machine's CPU is not for the wheel's."""
        with unittest.mock.patch.dict(os.environ, GOAMD64="v3", GOARM64="v9.0"):
            self.assertEqual(backend.go("env", "GOAMD64", "GOARM64").split(), ["v1", "v8.0"])

    @unittest.skipUnless((backend.ROOT / ".git").is_dir() and shutil.which("git"), "SKIPPED: no git clone: Go finds no commit")
    def test_commit(self):
        """The programs know their commit, whatever GOFLAGS has: the commands that would link one say so."""
        said = subprocess.run([backend.GO, "build", "-n", *backend.FLAGS, "./cmd/prefill"], cwd=backend.ROOT, env=os.environ | {"GOFLAGS": "-buildvcs=false"}, capture_output=True, text=True)
        self.assertTrue("vcs.revision=" in said.stderr, said.stderr[-2000:])


class TestTag(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def link(self, name, source, *flags):
        out = self.folder / name
        subprocess.run(["gcc", "-x", "c", "-", "-x", "none", "-o", out, *flags], input=source.encode(), check=True)
        return out

    @unittest.skipUnless(shutil.which("gcc") and shutil.which("readelf"), "SKIPPED: no gcc with binutils")
    def test_needs(self):
        """Files that name a version of glibc's, a version that no number is, another library, and nothing."""
        source = "extern int probe(void); int main(void) { return probe(); }"

        def asks(version, name):
            """A program that is linked with a libc.so.6 of that version only."""
            (self.folder / "map").write_text(f"{version} {{ global: probe; }};")
            self.link("libc.so.6", "int probe(void) { return 0; }", "-shared", "-nostdlib", "-Wl,-soname,libc.so.6", f"-Wl,--version-script={self.folder}/map")
            return self.link(name, source.replace("main", "_start"), "-nostdlib", "-nostartfiles", str(self.folder / "libc.so.6"))

        new, old = asks("GLIBC_2.99", "new"), asks("GLIBC_2.9", "old")
        self.assertEqual(backend.needs(new), ((2, 99), ["libc.so.6"]))
        self.assertEqual(backend.needs(old), ((2, 9), ["libc.so.6"]))
        self.assertEqual(backend.platform([old, new, old], "aarch64"), "manylinux_2_99_aarch64")
        self.assertEqual(backend.platform([old], "x86_64"), "manylinux_2_17_x86_64")
        self.assertEqual(backend.needs(asks("GLIBC_ABI_DT_RELR", "relative"))[0], (2, 36))
        self.assertEqual(backend.needs(asks("GLIBCXX_3.4.29", "cxx"))[0], (0, 0))
        for version in ("GLIBC_PRIVATE", "GLIBCXX_3.4.30"):
            with self.assertRaisesRegex(backend.Fault, version):
                backend.needs(asks(version, "refused"))

        static = self.link("static", "void _start(void) { for (;;) {} }", "-static", "-nostdlib")
        self.assertEqual(backend.needs(static), ((0, 0), []))
        other = self.link("libother.so", "int probe(void) { return 0; }", "-shared", "-nostdlib", "-Wl,-soname,libother.so.1")
        user = self.link("user", source.replace("main", "_start"), "-nostdlib", "-nostartfiles", str(other))
        with self.assertRaisesRegex(backend.Fault, "libother.so.1, which not every system has"):
            backend.platform([user], "x86_64")

    @unittest.skipUnless(os.environ.get("KVFERRY_LIBRARY") and shutil.which("readelf"), "SKIPPED: no library, or no binutils")
    def test_library(self):
        """The tag of this library holds here, where it runs."""
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        newest, _ = backend.needs(os.environ["KVFERRY_LIBRARY"])
        self.assertLessEqual(newest, tuple(map(int, version.split("."))))
        self.assertGreater(newest, (2, 2))


class TestWheel(unittest.TestCase):
    FILES = {
        "kvferry/__init__.py": b"import this",
        "kvferry/libkvferry.so": b"\x7fELF" + bytes(1000),
        "kvferry-1.dist-info/METADATA": b"Name: kvferry\n",
        "kvferry-1.data/scripts/kvferry": b"\x7fELF",
    }

    def write(self, epoch=None):
        before = os.environ.pop("SOURCE_DATE_EPOCH", None)
        self.addCleanup(lambda: before is not None and os.environ.update(SOURCE_DATE_EPOCH=before))
        if epoch is not None:
            os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "kvferry-1-py3-none-any.whl"
            backend.write(path, "kvferry-1.dist-info", dict(self.FILES))
            return path.read_bytes()

    def test_record(self):
        """RECORD lists each file once, with its digest and size, and itself with neither."""
        with zipfile.ZipFile(io.BytesIO(self.write())) as archive:
            rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read("kvferry-1.dist-info/RECORD").decode()))}
            self.assertEqual(set(rows), set(archive.namelist()))
            self.assertEqual(len(rows), len(self.FILES) + 1)
            self.assertEqual(rows.pop("kvferry-1.dist-info/RECORD"), ["", ""])
            for name, (digest, size) in rows.items():
                self.assertEqual(archive.read(name), self.FILES[name])
                kind, _, value = digest.partition("=")
                self.assertEqual((kind, base64.urlsafe_b64decode(value + "=")), ("sha256", hashlib.sha256(self.FILES[name]).digest()), name)
                self.assertEqual(int(size), len(self.FILES[name]))
            modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
        self.assertEqual(modes["kvferry-1.data/scripts/kvferry"], 0o100755)
        self.assertEqual(modes["kvferry/__init__.py"], 0o100644)

    def test_reproducible(self):
        """The same files are the same wheel, whenever it is made; SOURCE_DATE_EPOCH is its time."""
        self.assertEqual(self.write(), self.write(0))
        at = 1763900000
        self.assertNotEqual(self.write(), self.write(at))
        self.assertEqual(self.write(at), self.write(at))


if __name__ == "__main__":
    unittest.main()
