"""Debian systems in a folder, of this processor or another, and programs that run in them.

Programs of another processor run under qemu, and so do those that they start. A user namespace has a binfmt_misc of
its own (Linux 6.7), which names qemu to the kernel for the programs of that namespace alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

QEMU = "qemu-aarch64-static"
ENTER = r"""
mount -t binfmt_misc none "$1/mnt"
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
if [ -n "$2" ]; then printf %s ":qemu-aarch64:M::$magic:$mask:$2:PF" > "$1/mnt/register"; fi
for folder in proc sys dev; do mount --rbind /$folder "$1/$folder"; done
root=$1
shift 2
exec chroot "$root" "$@"
"""
# What the packages' scripts, which do not run, would have made.
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}


def in_cmake(processor: str, soabi: str) -> list[str]:
    """Options of CMake to compile for another processor, for a Python of this ABI; the compiler is not among them."""
    system = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"]
    return [*system, f"-DSKBUILD_SOABI={soabi}", "-DSKBUILD_SOSABI=abi3", "-DRINGREDUCE_CUDA=OFF"]


def unpacked(suite: str, packages: str, folder: Path, processor: str) -> Path:
    """A Debian of these packages and what they need, in a folder. No program of it runs."""
    if folder.exists():
        return folder
    if not shutil.which("mmdebstrap"):
        sys.exit(f"Unpacking Debian's {suite} needs mmdebstrap: apt-get install mmdebstrap")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    how = ["--mode=chrootless", "--variant=extract", f"--architectures={processor}"]
    how += ['--aptopt=Acquire::Check-Valid-Until "false"']  # a mirror's copy of sid may be weeks old
    # Its main archive alone: others close first, when a suite becomes old.
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian"]
    mirror = subprocess.run(words, check=True, capture_output=True, text=True).stdout.partition("\n")[0]
    done = subprocess.run(
        ["mmdebstrap", *how, f"--include={packages}", suite, part, f"deb {mirror} {suite} main"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"mmdebstrap {suite}: {done.stderr}")
    for name, text in FILES.items():
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (part / name).write_text(text)
    for name in ("dev", "mnt", "proc", "root", "sys", "tmp"):
        (part / name).mkdir(exist_ok=True)
    return part.rename(folder)


def inside(root: Path, words: Sequence[str | Path], processor: str, **more: str) -> int:
    """Runs a program in the root, with a bare environment; returns its exit status."""
    qemu = shutil.which(QEMU) or "" if processor == "arm64" else ""
    if processor == "arm64" and not qemu:
        sys.exit(f"Programs for arm64 need {QEMU}: apt-get install qemu-user-static")
    environment = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"} | more
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", ENTER, "sh", root, qemu]
    return subprocess.run(
        [*enter, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), *words],
        env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    ).returncode
