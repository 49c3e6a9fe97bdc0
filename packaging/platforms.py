"""What wheels are compiled with: a compiler that runs on this machine, with the libraries of the wheels' platform.

For glibc this is g++ with the headers and libraries of Debian 11, so that wheels run with every glibc from there on.
For musl it is zig, which brings musl along, and the sources of libc++.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import libcxx
import roots

HERE = f"{platform.machine()}-linux-gnu"
OF_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
OF_DEBIAN_11 = "libc6-dev,libstdc++-10-dev"
ZIG = "ziglang==0.17.0"


def run(*words: str | Path, **more: str) -> str:
    """Runs a command with `more` in its environment; returns its output, and shows it if the command fails."""
    done = subprocess.run(
        [str(word) for word in words], env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}\nended with {done.returncode}")
    return done.stdout


@dataclass(frozen=True)
class Platform:
    """A processor and a C library ("gnu" or "musl"), and the folder for what is built for them."""

    processor: str
    libc: str
    folder: Path

    @property
    def triplet(self) -> str:
        return f"{self.processor}-linux-{self.libc}"

    @property
    def is_here(self) -> bool:
        return self.triplet == HERE

    @property
    def wheels(self) -> str:
        """The names of its wheels, as a pattern."""
        return f"ringreduce-*-{'many' if self.libc == 'gnu' else 'musl'}linux*_{self.processor}.whl"

    @property
    def engine(self) -> Path:
        return self.folder / "engine"

    @property
    def library(self) -> Path:
        """The C++ library for musl, which goes into the wheels."""
        return self.folder / "compiler" / libcxx.NAME

    @property
    def library_license(self) -> Path:
        return self._zig_program.parent / "lib" / "libcxx" / "LICENSE.TXT"

    @property
    def _zig_program(self) -> Path:
        return self.folder / "zig" / "ziglang" / "zig"

    @property
    def headers(self) -> Path:
        """A folder for headers that Debian's Pythons have outside of their own."""
        return self.folder / "compiler" / "include"

    def compiler(self) -> Path:
        """Its C++ compiler, as a script. CMake finds the tools for its objects by the script's name."""
        folder = self.folder / "compiler"
        folder.mkdir(parents=True, exist_ok=True)
        script = self._gcc(folder) if self.libc == "gnu" else self._zig(folder)
        wrapper = folder / f"{self.triplet}-{'g++' if self.libc == 'gnu' else 'clang++'}"
        if not wrapper.exists() or wrapper.read_text() != script:
            wrapper.write_text(script)
            wrapper.chmod(0o755)
        return wrapper

    def _gcc(self, folder: Path) -> str:
        gcc = "g++" if self.is_here else f"{self.triplet}-g++"
        if not shutil.which(gcc):
            sys.exit(
                f"Wheels for {self.processor} need {gcc}: apt-get install g++-{self.processor}-linux-gnu"
            )
        system = roots.unpacked("bullseye", OF_DEBIAN_11, self.folder / "system", OF_DEBIAN[self.processor])
        for link in system.rglob("*"):  # absolute ones lead out of it
            if link.is_symlink() and link.readlink().is_absolute():
                inside = system / link.readlink().relative_to("/")
                link.unlink()
                link.symlink_to(os.path.relpath(inside, link.parent))
        library = folder / "libstdc++.so"  # before g++'s own
        library.unlink(missing_ok=True)
        library.symlink_to(system / "usr" / "lib" / self.triplet / "libstdc++.so.6")
        include = system / "usr" / "include"
        # Of C, too: a compiler for another processor has newer ones of its own.
        parts = ("c++/10", f"{self.triplet}/c++/10", "c++/10/backward", self.triplet, ".")
        libraries = [folder, system / "usr" / "lib" / self.triplet, system / "lib" / self.triplet]
        headers = [include / part for part in parts] + [self.headers]
        folders = [*(f"-isystem {path}" for path in headers), *(f"-L{path}" for path in libraries)]
        options = f"--sysroot={system} -nostdinc++ {' '.join(folders)}"
        # What newer compilers say of these older headers is no error.
        return f'#!/bin/sh\nexec {gcc} {options} "$@" -Wno-error\n'

    def _zig(self, folder: Path) -> str:
        zig = self._zig_program
        if not zig.exists():
            run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", zig.parents[1], ZIG)
        return libcxx.script(zig, self.triplet, folder)
