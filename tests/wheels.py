"""Installs the wheels in dist where they belong, and tries them: make test-wheels. docs/installing.md has the results.

Wheels for glibc are tried with Debian's Pythons, those for arm64 under qemu, and those for this machine with its
own Pythons, too; wheels for musl with a Python that packaging/cpython.sh builds for it.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packaging"))
import roots  # noqa: E402
from platforms import OF_DEBIAN, run  # noqa: E402

BUILD = ROOT / "build" / "wheel-tests"
SUITES = {"bookworm": "3.11", "trixie": "3.13", "sid": "3.14"}
OF_MUSL = "3.13"
TAGS = {"gnu": [f"manylinux_2_{minor}" for minor in (17, 27, 28, 31)], "musl": ["musllinux_1_2"]}
PROGRAM = """
import subprocess, sys, sysconfig, numpy as np, ringreduce


def rank_of(comm):
    return comm.all_reduce(np.arange(100_000.0)).sum() == sum(range(100_000)) * comm.size


if __name__ == "__main__":
    for transport in ("shm", "tcp"):
        assert all(ringreduce.run(rank_of, 2, transport=transport)), transport
    try:
        ringreduce.run(rank_of, 2, transport="none of these")
    except ValueError:
        pass  # it was thrown in one library and caught in another
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled()
    print(sys.version.split()[0], sysconfig.get_config_var("EXT_SUFFIX"), ringreduce.__file__, flush=True)
    subprocess.run([sys.executable, "-m", "ringreduce", "--version"], check=True)
"""


def install(into: Path, what: Sequence[str], python: str | Path = sys.executable, *options: str) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", into, *options]
    run(*pip, *what)


def put(into: Path, python: str | Path = sys.executable, *options: str) -> Path:
    """Installs the wheel in dist and NumPy in a folder, beside the program."""
    shutil.rmtree(into, ignore_errors=True)
    ours = ["--no-index", "--no-deps", "--find-links", str(ROOT / "dist"), "ringreduce"]
    install(into, ours, python, *options)
    install(into, ["numpy"], python, *options)
    (into / "smoke.py").write_text(PROGRAM)
    return into


def for_others(version: str, processor: str, libc: str) -> list[str]:
    """pip's options to install for another platform and Python."""
    return [f"--python-version={version}", *(f"--platform={tag}_{processor}" for tag in TAGS[libc])]


def has_wheel(version: str, processor: str) -> bool:
    tag = f"cp{version.replace('.', '')}"
    tags = [f"{tag}-{tag}", *(["cp312-abi3"] if tag >= "cp312" else [])]
    made = [path.name for path in (ROOT / "dist").glob(f"ringreduce-*-manylinux*_{processor}.whl")]
    return any(f"-{one}-" in name for one in tags for name in made)


def works(python: str | Path, folder: Path) -> bool:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(folder)}
    return subprocess.run([python, folder / "smoke.py"], env=environment, cwd=folder).returncode == 0


def works_in(suite: str, processor: str) -> bool:
    """Tries the wheel with the Python of that Debian."""
    version = SUITES[suite]
    packages = "bash,coreutils,dash,python3,libgcc-s1,libstdc++6"
    root = roots.unpacked(suite, packages, BUILD / suite, OF_DEBIAN[processor])
    put(root / "opt" / "wheel", sys.executable, *for_others(version, processor, "gnu"))
    words = ["env", "-C", "/tmp", "python3", "/opt/wheel/smoke.py"]
    return roots.inside(root, words, OF_DEBIAN[processor], PYTHONPATH="/opt/wheel") == 0


def works_with_musl(processor: str) -> bool:
    """Tries the wheel with a Python for musl, on Debian 13: NumPy's wheel crashes with Debian 12's musl."""
    python = ROOT / "build" / f"python{OF_MUSL}-musl"
    if not (python / "bin" / "python3").exists():
        run(ROOT / "packaging" / "cpython.sh", OF_MUSL, python, CC="musl-gcc")
    root = roots.unpacked("trixie", "bash,coreutils,dash,musl", BUILD / "musl", OF_DEBIAN[processor])
    put(root / "opt" / "wheel", sys.executable, *for_others(OF_MUSL, processor, "musl"))
    shutil.copytree(python, root / "opt" / "python", dirs_exist_ok=True)
    words = ["env", "-C", "/tmp", f"/opt/python/bin/python{OF_MUSL}", "/opt/wheel/smoke.py"]
    return roots.inside(root, words, OF_DEBIAN[processor], PYTHONPATH="/opt/wheel") == 0


def tried(processor: str, libc: str, pythons: Sequence[str]) -> dict[str, bool]:
    """What the wheel was tried with, and whether it works."""
    if libc == "musl":
        return {f"Python {OF_MUSL}": works_with_musl(processor)}
    is_here = processor == platform.machine()
    there = [python for python in pythons if is_here and shutil.which(python)]
    suites = [suite for suite, version in SUITES.items() if has_wheel(version, processor)]
    return {
        **{python: works(python, put(BUILD / Path(python).name, python)) for python in there},
        **{f"Debian {suite}": works_in(suite, processor) for suite in suites},
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--arch", default=platform.machine(), choices=OF_DEBIAN)
    asked.add_argument("--libc", default="gnu", choices=TAGS)
    asked.add_argument("--python", nargs="*", default=[], help="to try the wheels for this machine with")
    options = asked.parse_args()
    results = tried(options.arch, options.libc, options.python)
    for what, has_worked in results.items():
        print(f"{options.arch}, {options.libc}, {what}: {'works' if has_worked else 'FAILED'}")
    sys.exit(0 if results and all(results.values()) else 1)


if __name__ == "__main__":
    main()
