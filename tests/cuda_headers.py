"""Reads the CUDA part's sources with another version's headers, as clang does for the host and for GPUs.

    python tests/cuda_headers.py [-j 2] TOOLKIT

No code is generated: that needs an nvcc (`make cuda`, `make cuda-13`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIDY = Path(sys.executable).parent / "clang-tidy"
FOLDERS = ["csrc/gpu/device/cuda", "csrc/gpu/kernels/cuda", "csrc/gpu/reduce"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unknown-cuda-version"]
DEVICE = ["--cuda-device-only"]
PASSES = {
    ".cpp": [[]],
    ".cu": [["--cuda-host-only"], [*DEVICE, "--cuda-gpu-arch=sm_80"], [*DEVICE, "--cuda-gpu-arch=sm_90"]],
}


def command(file: Path, toolkit: Path, flags: list[str]) -> list[str]:
    includes = ["-Icsrc", "-Icsrc/gpu/reduce", "-Icsrc/gpu/reduce/nvcc", f"-isystem{toolkit}/include"]
    language = ["-x", "cuda", f"--cuda-path={toolkit}", "-nocudalib"]
    if file.suffix == ".cpp":
        language = ["-x", "c++"]
    # It wants some check to be on: what we are after are the compiler's own errors and warnings.
    checks = ["--quiet", "--checks=-*,modernize-use-nullptr,clang-diagnostic-*", "--warnings-as-errors=*"]
    return [
        str(TIDY),
        *checks,
        str(file),
        "--",
        *language,
        "-std=c++20",
        "-DRINGREDUCE_ISA=device",
        *flags,
        *WARNINGS,
        *includes,
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("toolkit", type=Path)
    options = parser.parse_args()
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).iterdir() if file.suffix in PASSES)
    commands = [
        command(file, options.toolkit.resolve(), flags) for file in files for flags in PASSES[file.suffix]
    ]

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, commands))
    failed = [result for result in results if result.returncode]
    for result in failed:
        print(result.stdout or result.stderr)
    print(
        f"{options.toolkit.name}: {len(results)} readings of {len(files)} files, {len(failed)} with findings"
    )
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
