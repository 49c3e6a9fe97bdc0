"""Ranks that are processes of one host: their GPUs' memory is shared by handles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .gpu_arrays import HAS_CARD, library
from .ranks import EMULATED_LIBRARY

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not HAS_CARD and not EMULATED_LIBRARY.exists(), reason="not built: make emulated"),
]


@pytest.mark.parametrize("what", ["one", "two", "killed"])
@pytest.mark.parametrize("world", [2, 3])
def test_processes(what, world):
    if what == "two" and library().count_devices() < 2:
        pytest.skip("there is one GPU")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RINGREDUCE_EMULATED_BLOCKS": "8"}
    program = [sys.executable, "-m", "tests.gpu.programs_of_processes", what, str(world)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=50, env=env)
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr
