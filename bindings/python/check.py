"""Checks a wheel of kvferry as somebody has it who has neither Go nor libibverbs.

    python3 python/check.py WHEEL

Installs it into a fresh environment, and runs there: a transfer through the binding, kvferry, and each program's --help.
Root does that in a root directory (chroot) where there are only Python, glibc and what was installed; anybody else
with a PATH on which Go is not, and with libibverbs if the machine has it.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

COMMANDS = ("bench", "proxy", "node")

TRANSFER = """
import os, kvferry
with kvferry.Engine("127.0.0.1:0", log="off", name="here") as here, kvferry.Engine("127.0.0.1:0", log="off") as there:
    ours, theirs = bytearray(os.urandom(1 << 20)), bytearray(1 << 20)
    target = here.connect(there.advertise(there.register(theirs)))
    here.submit(target, kvferry.WRITE, [kvferry.Range(here.register(ours).address, 0, 1 << 20)], message=b"done")
    assert here.wait(60) and there.wait(60)
    assert here.poll()[0].error is None and theirs == ours, "other bytes have arrived"
    assert [(m.sender, m.data) for m in there.receive()] == [("here", b"done")], "another message"
try:
    kvferry.Engine("rdma/none0", log="off")
    raise SystemExit("a rail over RDMA without a NIC was opened")
except kvferry.Error as e:
    print(e)
print("kvferry", kvferry.build())
"""


def libraries(file):
    """The shared libraries that a file is loaded with."""
    said = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def bare_root(root):
    """Puts Python, and what it needs, below root: at the places where they are here."""
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, f"{root}{stdlib}", ignore=shutil.ignore_patterns("test", "site-packages", "dist-packages", "__pycache__", "config-*"))
    python = pathlib.Path(sys.executable).resolve()
    files = {python, *(pathlib.Path(lib) for f in (python, *stdlib.glob("lib-dynload/*.so")) for lib in libraries(f))}
    (libc,) = (f for f in files if f.name == "libc.so.6")
    files |= {f for f in libc.parent.iterdir() if re.fullmatch(r"lib(m|dl|rt|pthread|resolv)\.so\.\d+", f.name)}
    for file in files:
        place = pathlib.Path(f"{root}{file}")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    os.makedirs(f"{root}/tmp", exist_ok=True)


def check(wheel, root):
    environment = root / "wheel"
    python = pathlib.Path(getattr(sys, "_base_executable", sys.executable))
    subprocess.run([python, "-m", "venv", "--copies", environment], check=True)
    subprocess.run([environment / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel], check=True)
    chroot = os.getuid() == 0
    at, inside = environment, {}
    if chroot:
        bare_root(root)
        at, inside = pathlib.Path("/wheel"), {"preexec_fn": lambda: (os.chroot(root), os.chdir("/"))}

    def run(program, *arguments):
        done = subprocess.run(
            [at / "bin" / program, *arguments], env={"PATH": f"{at}/bin:/usr/bin:/bin"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, **inside
        )
        if done.returncode:
            sys.exit(f"check.py: {program} {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    said = run("python", "-c", TRANSFER)
    if chroot and "apt-get install libibverbs1" not in said:
        sys.exit(f"check.py: without libibverbs a rail over RDMA says: {said}")
    version = run("kvferry", "--version").split()[1].rstrip(",")
    if said.splitlines()[-1] != f"kvferry {version}":
        sys.exit(f"check.py: kvferry is of {version}, and the library says: {said}")
    for command in COMMANDS:
        if f"\nUsage:\n  kvferry {command} " not in run("kvferry", command, "--help"):
            sys.exit(f"check.py: kvferry {command} --help has no usage")
    if "TTFT" not in run("kvferry", "sim", "--num-prompts", "8", "--out", str(at / "simulate")):
        sys.exit("check.py: kvferry sim has no TTFT")
    return chroot


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wheel = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        chroot = check(wheel.resolve(), pathlib.Path(scratch))
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda e: -e.file_size)[:6]:
            print(f"{entry.compress_size / 1e6:8.1f} MB  {entry.filename}")
    print(f"{wheel.stat().st_size / 1e6:8.1f} MB  {wheel}")
    print("checked", "where there are only Python and glibc" if chroot else "without Go on the PATH; root would hide libibverbs too")


if __name__ == "__main__":
    main()
