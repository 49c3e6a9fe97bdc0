"""The C++ benchmarks go with the engine that is there; only `make bench-peers` builds them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "source", sorted((ROOT / "bench" / "engine" / "cpp").glob("*.cpp")), ids=lambda path: path.stem
)
def test_it_compiles(source):
    command = [
        os.environ.get("CXX", "c++"),
        "-std=c++20",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-I",
        ROOT / "csrc",
    ]
    ended = subprocess.run([*command, source], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
