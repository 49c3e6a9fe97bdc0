"""The benchmarks run, on the emulated GPU, whose figures say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .ranks import EMULATED_LIBRARY

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not EMULATED_LIBRARY.exists(), reason="not built: make emulated"),
]


def run(script, *options):
    env = {**os.environ, "RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY), "RINGREDUCE_EMULATED_BLOCKS": "4"}
    command = [sys.executable, f"bench/{script}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("emulated device")
    return [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]


def test_all_reduce():
    table = run(
        "gpu_all_reduce.py",
        "--ranks=2",
        "--sizes=4K",
        "--copy=64K",
        "--calls=2",
        "--rounds=2",
        "--algorithms=auto,ring",
    )
    assert [row[1].strip() for row in table[2:]] == ["ringreduce auto", "ringreduce ring"]
    assert all(float(row[2].replace(",", "")) > 0 for row in table[2:])


def test_reduce():
    table = run(
        "gpu_reduce.py", "--bytes=64K", "--sources=2,3", "--dtypes=float32", "--wires=int8", "--rounds=2"
    )
    assert len(table) == 2 + 2 + 2 + 1
