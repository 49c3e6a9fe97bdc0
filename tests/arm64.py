"""The tests for arm64 under qemu: make test-arm64. Debian has the compiler, and the system that they run in.

qemu keeps the order of memory accesses of the processor that it runs on: on x86-64, faults of memory order do not show.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packaging"))
import roots  # noqa: E402

BUILD = ROOT / "build" / "arm64"
SUITE = "bookworm"  # its Python is that of the headers
TOOLS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "mmdebstrap": "mmdebstrap", roots.QEMU: "qemu-user-static",
}  # fmt: skip
PACKAGES = "bash,coreutils,dash,procps,python3,python3-dev,util-linux,libgcc-s1,libstdc++6"
FROM_PYPI = ["numpy", "ml_dtypes", "pytest>=8", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest"]
SITE = "opt/site"
CHECKED_OUT = "ringreduce"
# What runs of the suite, in worlds of 2 to 4 ranks. Programs are many times slower than on this machine's processor.
# qemu ignores limits of a process's addresses and has no seccomp; and that system has no compiler.
NOT_THERE = "not limit_of_addresses and not refuses_memory_files and not cuda_knows"
FEW_RANKS = " and ".join(f"not {world}]" for world in (1, 5, 6, 7, 8, 9, 11, 13))
STEPS = {
    "reduce": ["tests/engine/reduce"],
    "schedules": ["tests/schedules"],
    "transports": [
        *("tests/engine/transport", "tests/engine/network/test_tcp.py", "tests/engine/network/test_damage.py"),
        *("-k", f"{FEW_RANKS} and not memory_held and not find_space"),
    ],
    "collectives": [
        *("tests/communicator/collectives/test_values.py", "tests/communicator/collectives/test_stress.py"),
        *("tests/communicator/memory", "-k", f"{FEW_RANKS} and {NOT_THERE}"),
    ],
    "faults": [
        *("tests/faults/test_death.py", "tests/faults/test_mismatch.py", "tests/faults/test_shrink.py"),
        *("-k", "ways_to_die or two_die or in_the_background or skips or message or go_on"),
    ],
}  # fmt: skip


def run(*words: str | Path, **more: str) -> None:
    done = subprocess.run(
        words, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}\nended with {done.returncode}")


def install_tools() -> None:
    missing = [package for program, package in TOOLS.items() if not shutil.which(program)]
    if missing:
        run("apt-get", "update", "-qq")
        run(
            "apt-get",
            "install",
            "-qq",
            "-y",
            "--no-install-recommends",
            *missing,
            DEBIAN_FRONTEND="noninteractive",
        )


def install(version: str, into: Path, *what: str) -> None:
    """Installs wheels for arm64 and that Python in a folder."""
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28, 31)]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", f"--python-version={version}"]
    run(*pip, *platforms, "--target", into, *what)


def make_root() -> Path:
    """A Debian for arm64 with Python and what the tests need."""
    root = roots.unpacked(SUITE, PACKAGES, BUILD / SUITE, "arm64")
    if not (root / SITE).exists():
        install(sysconfig.get_python_version(), root / SITE, *FROM_PYPI)
    return root


def build(root: Path, jobs: int) -> None:
    """Compiles the engine, the extension and the C++ tests, and puts them beside a copy of the sources."""
    version, include = sysconfig.get_python_version(), sysconfig.get_path("include")
    triplet, at = "aarch64-linux-gnu", BUILD / "build"
    at.mkdir(parents=True, exist_ok=True)
    cmake = [sys.executable, "-m", "cmake"]
    run(
        *(*cmake, "-G", "Ninja", "-S", ROOT, "-B", at),
        *roots.in_cmake("aarch64", f"cpython-{version.replace('.', '')}-{triplet}"),
        *(f"-DCMAKE_CXX_COMPILER={triplet}-g++", f"-DCMAKE_CXX_FLAGS=-idirafter {root}/usr/include"),
        *(f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={include}"),
        *(f"-DPython_NumPy_INCLUDE_DIR={root / SITE}/numpy/_core/include", "-DRINGREDUCE_WERROR=ON"),
        *("-DRINGREDUCE_TESTS=ON", "-DRINGREDUCE_TORCH=OFF"),
    )
    run(*cmake, "--build", at, "-j", str(jobs), "--target", "ringreduce", "_engine", "stress")
    copy = root / CHECKED_OUT
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    run(*cmake, "--install", at, "--prefix", copy, "--component", "engine")
    shutil.copy2(at / "tests" / "engine" / "cpp" / "stress", copy)


def step(root: Path, name: str, jobs: int) -> bool:
    """Runs one of the steps; returns whether it has passed."""
    pytest = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "900", "-n", str(jobs)]
    pytest.append("--hypothesis-profile=ci")  # which expects no speed
    words = (
        ["./stress"] if name == "stress" else [*pytest, "--dist", "loadfile", "-m", "not slow", *STEPS[name]]
    )
    print(f"arm64 under qemu: {name}", flush=True)
    where = ["env", "-C", f"/{CHECKED_OUT}"]
    variables = {"PYTHONPATH": f"/{SITE}:/{CHECKED_OUT}", "RINGREDUCE_TEST_PATIENCE": "600"}
    return roots.inside(root, [*where, *words], "arm64", **variables) == 0


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--steps", nargs="*", default=["stress", "reduce"])
    options = asked.parse_args()
    install_tools()
    root = make_root()
    build(root, options.jobs)
    failed = [name for name in options.steps if not step(root, name, options.jobs)]
    sys.exit(f"arm64: {', '.join(failed)} failed" if failed else 0)


if __name__ == "__main__":
    main()
