"""Runs clang-tidy over C++ sources: those named, or all that are compiled, once each.

    python tests/tidy.py [-j 2] [--budget SECONDS] [FILE ...]

With a budget no further file is begun when the time is up; files that differ from the main branch come first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIDY = Path(sys.executable).parent / "clang-tidy"
BUILD = ROOT / "build/lint"  # nothing is built there


def configure() -> None:
    """Writes a compilation database that names each file by itself."""
    settings = {"CMAKE_UNITY_BUILD": "OFF", "RINGREDUCE_CUDA": "OFF", "Python_EXECUTABLE": sys.executable}
    subprocess.run(
        [TIDY.with_name("cmake"), "-G", "Ninja", "-S", ROOT, "-B", BUILD]
        + [f"-D{name}={value}" for name, value in settings.items()],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{TIDY.parent}:{os.environ['PATH']}"},
        check=True,
    )


def sources() -> list[str]:
    """Ours, of those in the compilation database: a kernel is in it several times, generated files are not ours.

    nvcc's flags are not clang's; what is in .cu files is in headers that other files include, too.
    """
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    files = {Path(command["directory"], command["file"]).resolve() for command in commands}
    return sorted(
        str(file.relative_to(ROOT))
        for file in files
        if file.suffix != ".cu" and file.is_relative_to(ROOT / "csrc")
    )


def for_clang() -> Path:
    """A compilation database without the flags that only GCC has."""
    commands = (BUILD / "compile_commands.json").read_text()
    folder = BUILD / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(commands.replace(" -fno-tree-loop-distribute-patterns", ""))
    return folder


def changed() -> set[str]:
    names = ["git", "diff", "--name-only", "origin/main", "--", "csrc"]
    return set(subprocess.run(names, cwd=ROOT, capture_output=True, text=True).stdout.split())


def tidy(build: Path, file: str, deadline: float) -> tuple[str, int | None, str]:
    if time.monotonic() > deadline:
        return file, None, ""
    # GCC's warnings and flags that clang lacks are GCC's business.
    quiet = [
        "--quiet",
        "--extra-arg=-Wno-unknown-warning-option",
        "--extra-arg=-Wno-ignored-optimization-argument",
        # Said again by modernize-use-override, which can be told where it is meant.
        "--extra-arg=-Wno-inconsistent-missing-override",
        # GCC's too, which knows that its stable_sort calls what it has deprecated.
        "--extra-arg=-Wno-deprecated-declarations",
    ]
    run = subprocess.run([TIDY, *quiet, "-p", build, file], cwd=ROOT, capture_output=True, text=True)
    return file, run.returncode, run.stdout + (run.stderr if run.returncode and not run.stdout else "")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    configure()
    build = for_clang()
    first = changed()
    files = options.files or sorted(sources(), key=lambda file: file not in first)
    deadline = time.monotonic() + options.budget
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda file: tidy(build, file, deadline), files))
    for _, code, text in results:
        if code:
            print(text)
    skipped = [file for file, code, _ in results if code is None]
    failed = [file for file, code, _ in results if code]
    print(f"clang-tidy: {len(results) - len(skipped)} files, {len(failed)} with findings", end="")
    print(f"; no time for {len(skipped)}" if skipped else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
