"""Builds kvferry's wheel: the package, libkvferry.so beside it, NIXL's plugin, and the programs.

    python3 python/backend.py FOLDER     as make wheel does
    pip wheel ./python                   the same by pip: this is a PEP 517 backend

It needs Go, a C compiler with binutils, and Python's standard library; with g++, or what CXX names, the wheel has a plugin
for NIXL too, and CXX= leaves it out. The same commit, Go and C compiler give the
same bytes; SOURCE_DATE_EPOCH is the time in the archive.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GO = os.environ.get("GO") or "go"

# The program, a command of cmd/: the daemons are commands of it.
PROGRAM = "kvferry"
NEWEST_CXX = 29  # GLIBCXX_3.4.29, of g++ 11: all systems with glibc 2.34 have it
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}

# What the tag promises: programs for every CPU of an architecture, whatever is set for this machine's.
PORTABLE = {"GOAMD64": "v1", "GOARM64": "v8.0"}

# Without symbols for debuggers and paths of this machine, and with the commit, of which the version is made.
FLAGS = ["-trimpath", "-buildvcs=auto", "-ldflags=-s -w"]
if os.environ.get("KVFERRY_UNTRIMMED"):  # .ci/run, which has compiled all packages with their paths by then
    FLAGS.remove("-trimpath")

METADATA = """\
Metadata-Version: 2.4
Name: kvferry
Version: {version}
Summary: Ferries KV caches between serving engines: TCP, RDMA and shared memory, several NICs, failover
License-Expression: Apache-2.0
{licenses}\
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: System :: Networking
Description-Content-Type: text/plain

The transfer engine of kvferry for Python (import kvferry) and C (kvferry.h and libkvferry.so in the package's
folder, and a plugin for NIXL), and the program kvferry. They need glibc and
nothing else; libibverbs is opened if a rail over RDMA is asked for.
"""


class Fault(Exception):
    """What keeps the wheel from being built, and what would help."""


def build_wheel(directory, config_settings=None, metadata_directory=None):
    """The hook of PEP 517: builds the wheel and returns its name."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not (ROOT / "go.mod").exists():
        raise Fault(f"{ROOT} is not kvferry's repository: pip 21.3 or later builds where the sources are")
    for tool in (GO, "readelf"):
        if not shutil.which(tool):
            raise Fault(f"there is no {tool}: building the wheel needs Go and a C compiler with binutils, installing it needs neither")
    architecture = ARCHITECTURES.get(go("env", "GOARCH"))
    if architecture is None or go("env", "GOOS") != "linux":
        raise Fault(f"no wheel for {go('env', 'GOOS')}/{go('env', 'GOARCH')}: only for Linux on {' and '.join(ARCHITECTURES)}")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        binaries = compile_all(scratch)
        version = pep440(subprocess.run([scratch / "kvferry", "--version"], check=True, capture_output=True, text=True).stdout.split()[1].rstrip(","))
        if version.startswith("0+"):
            print(f"backend.py: the version is {version}: Go finds no commit of {ROOT}, as in what is no git clone or a linked worktree, or without git", file=sys.stderr)
        tag = f"py3-none-{platform(binaries, architecture)}"
        files = {f"kvferry/{f.relative_to(ROOT / 'bindings' / 'python' / 'kvferry')}": f for f in sorted((ROOT / "bindings" / "python" / "kvferry").rglob("*"))}
        files = {name: f for name, f in files.items() if f.is_file() and "__pycache__" not in f.parts}
        files["kvferry/kvferry.h"] = scratch / "kvferry.h"
        files |= {f"kvferry/{f.name}": f for f in binaries if f.suffix == ".so"}
        files[f"kvferry-{version}.data/scripts/{PROGRAM}"] = scratch / PROGRAM
        info, found = f"kvferry-{version}.dist-info", licenses()
        files |= {f"{info}/licenses/{name}": f for name, f in found.items()}
        texts = {
            f"{info}/METADATA": METADATA.format(version=version, licenses="".join(f"License-File: {name}\n" for name in found)),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: kvferry\nRoot-Is-Purelib: false\nTag: {tag}\n",
        }
        name = f"kvferry-{version}-{tag}.whl"
        write(directory / name, info, {n: f.read_bytes() for n, f in files.items()} | {n: t.encode() for n, t in texts.items()})
    return name


def build_sdist(directory, config_settings=None):
    raise Fault("kvferry has no source distribution: its sources are the repository, of which pip wheel ./python makes the wheel")


def go(*arguments, **environment):
    """Runs the go command in the repository and returns what it prints."""
    done = subprocess.run([GO, *arguments], cwd=ROOT, env=os.environ | PORTABLE | environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Fault(f"go {' '.join(arguments)} has failed, see above; cgo needs a C compiler: apt-get install gcc libc6-dev")
    return done.stdout.strip()


def compile_all(to):
    """Builds the program and the libraries, and returns all files."""
    go("build", *FLAGS, "-o", f"{to}/", f"./cmd/{PROGRAM}", CGO_ENABLED="1")
    go("build", *FLAGS, "-tags=cshared", "-buildmode=c-shared", "-o", f"{to}/libkvferry.so", "./cmd/libkvferry", CGO_ENABLED="1")
    built = [to / name for name in (PROGRAM, "libkvferry.so")]
    shutil.copy(ROOT / "cmd" / "libkvferry" / "kvferry.h", to)
    if shutil.which(os.environ.get("CXX", "g++")):
        flags = f"-s {os.environ.get('CXXFLAGS', '')}"
        if subprocess.run([ROOT / "bindings" / "nixl" / "build", to], env=os.environ | {"CXXFLAGS": flags}).returncode:
            raise Fault("the plugin for NIXL cannot be built, see above; CXX= leaves it out")
        built.append(to / "libplugin_KVFERRY.so")
    else:
        print("backend.py: no C++ compiler: the wheel has no plugin for NIXL", file=sys.stderr)
    return built


def pep440(version):
    """A version as Go writes it, of a tag, of a commit behind one, or of a commit alone, as Python's packages have them.

    v1.2.0 is 1.2.0, and of a commit behind it v1.2.1-0.20261123052705-adc6fb3be96c is 1.2.1.dev20261123052705+adc6fb3be96c:
    both count what is behind 1.2.0 as being before 1.2.1.
    """
    m = re.fullmatch(r"v(\d+\.\d+\.\d+)(?:-(?:(alpha|beta|rc)\.?(\d+))?(?:[-.]?(?:0\.)?(\d{14})-([0-9a-f]{12}))?)?(\+dirty)?", version)
    if not m:
        return "0+" + re.sub("[^a-z0-9]+", ".", version.lower()).strip(".")
    release, kind, number, when, commit, dirty = m.groups()
    before = {"alpha": "a", "beta": "b", "rc": "rc", None: ""}[kind]
    if kind and when:
        number = int(number) + 1  # Go has v1.2.0-rc.1.0.2026... behind rc.1
    local = ".".join(filter(None, [commit, dirty and "dirty"]))
    return f"{release}{before}{number or ''}{f'.dev{when}' if when else ''}{f'+{local}' if local else ''}"


def needs(file):
    """The newest glibc that a program or library names, (2, 34), and the libraries that it names. (0, 0) if it is static."""
    out = subprocess.run(
        ["readelf", "--dynamic", "--version-info", "--wide", file], check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
    ).stdout
    for name in re.findall(r"Name: GLIBCXX_3\.4\.(\d+)", out):
        if int(name) > NEWEST_CXX:
            raise Fault(f"{file} names GLIBCXX_3.4.{name}, newer than all systems of its tag have: use g++ 12 or older, or CXX= to leave it out")
    newest = (0, 0)
    for name in re.findall(r"Name: GLIBC_(\S+)", out):
        if name == "ABI_DT_RELR":
            name = "2.36"  # which brought it
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?", name):
            raise Fault(f"{file} names GLIBC_{name}, which is of one build of glibc")
        newest = max(newest, tuple(map(int, name.split(".")[:2])))
    return newest, re.findall(r"\(NEEDED\).*\[(.*)\]", out)


def platform(files, architecture):
    """The platform tag of PEP 600 that is true of all files: manylinux_2_34_x86_64 is any Linux with glibc 2.34 or later."""
    newest = (2, 17)  # of the oldest systems that are asked about
    for file in files:
        glibc, libraries = needs(file)
        for name in libraries:
            if not re.fullmatch(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s))\.so\.[0-9]+|libkvferry\.so", name):
                raise Fault(f"{file} needs {name}, which not every system has")
        newest = max(newest, glibc)
    return f"manylinux_{newest[0]}_{newest[1]}_{architecture}"


def licenses():
    """Ours, Go's, and those of each module that is compiled into the programs."""
    listed = go("list", "-deps", "-tags=cshared", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", "./cmd/...", CGO_ENABLED="1")
    folders = {"": ROOT, "go/": go("env", "GOROOT")}
    folders |= {f"{path}/": folder for path, folder in sorted(line.split("\t") for line in set(listed.splitlines()) if line)}
    found = {}
    for prefix, folder in folders.items():
        folder = pathlib.Path(folder)
        texts = [f for f in sorted(folder.iterdir()) if re.match("(LICEN[CS]E|COPYING|NOTICE)", f.name.upper()) and f.is_file()]
        if not texts:
            raise Fault(f"{folder} has no license that the wheel could carry")
        found |= {f"{prefix}{f.relative_to(folder)}": f for f in (*texts, *sorted(folder.glob("licenses/*")))}
    return found


def write(path, info, files):
    """Writes a wheel: files by their names, and the list of them that pip checks and removes them by."""
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n" for name, data in files.items()]
    files = files | {record: "".join([*lines, f"{record},,\n"]).encode()}
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)  # 1980: an archive knows no time before
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in name or name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(pathlib.Path(sys.argv[1]) / build_wheel(sys.argv[1]))
    except Fault as e:
        sys.exit(f"backend.py: {e}")
