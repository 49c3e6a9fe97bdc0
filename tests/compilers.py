"""Compiles the source distribution with compilers that this system may lack: make test-compilers.

Each comes from a Debian that has it, and that is unpacked for it. pip compiles there, as it does for a user, with that
Debian's Python and C and C++ libraries. A warning is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packaging"))
import roots  # noqa: E402
from platforms import run  # noqa: E402
from wheels import REQUIRED  # noqa: E402

BUILD = ROOT / "build" / "compilers"
# From the suite's version of Python on, and what compiles there.
SUITES = {
    "bookworm": ("3.11", ["clang++-14"]),
    "trixie": ("3.13", ["g++-13", "g++-14", "clang++-19"]),
    "sid": ("3.14", ["g++-15", "clang++-21"]),
}
NEEDED = ["pip", *REQUIRED]
SITE = "opt/site"
OPTIONS = "RINGREDUCE_WERROR=ON;RINGREDUCE_CUDA=OFF;RINGREDUCE_TORCH=OFF"


def root_of(suite: str) -> Path:
    """That Debian, with its compilers and what pip needs."""
    version, compilers = SUITES[suite]
    # clang's packages are named after it without the pluses; it compiles against the newest libstdc++ that is there.
    packages = [name.replace("clang++", "clang") for name in compilers]
    others = ["bash", "coreutils", "dash", "g++", "python3-dev", "sed"]
    root = roots.unpacked(suite, ",".join([*others, *packages]), BUILD / suite, "amd64")
    if not (root / SITE).exists():
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)]
        pip = ["-m", "pip", "install", "--only-binary=:all:", f"--python-version={version}", *platforms]
        run(sys.executable, *pip, "--target", root / SITE, *NEEDED)
    return root


def compiles(root: Path, compiler: str, jobs: int) -> bool:
    into = root / "opt" / "sdist"
    shutil.rmtree(into, ignore_errors=True)
    run(sys.executable, ROOT / "packaging" / "wheels.py", "sdist", "--into", into)
    (archive,) = into.iterdir()
    words = "wheel --no-deps --no-build-isolation --no-index --verbose --wheel-dir"
    log = BUILD / f"{compiler}.log"
    more = {"PYTHONPATH": f"/{SITE}", "PATH": f"/{SITE}/bin:/usr/bin:/bin", "CXX": compiler, "CC": "false"}
    # What clang warns of does not depend on how far it optimizes.
    quickly = ";CMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" if "clang" in compiler else ""
    more |= {"SKBUILD_CMAKE_DEFINE": OPTIONS + quickly, "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    inner = ["sh", "-c", f"python3 -m pip {words} /opt/{compiler} /opt/sdist/{archive.name} > /tmp/log 2>&1"]
    status = roots.inside(root, inner, "amd64", **more)
    shutil.copy(root / "tmp" / "log", log)
    if status:
        print(log.read_text()[-6000:])
    return status == 0 and "warning:" not in log.read_text()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [compiler for _, compilers in SUITES.values() for compiler in compilers]
    asked.add_argument("compilers", nargs="*", default=every)
    asked.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    options = asked.parse_args()
    failed = []
    for suite, (_, compilers) in SUITES.items():
        for compiler in compilers:
            if compiler in options.compilers:
                has_compiled = compiles(root_of(suite), compiler, options.jobs)
                print(f"{compiler}, Debian {suite}: {'no warning' if has_compiled else 'FAILED'}", flush=True)
                failed += [] if has_compiled else [compiler]
    sys.exit(f"{', '.join(failed)}: see {BUILD}" if failed else 0)


if __name__ == "__main__":
    main()
