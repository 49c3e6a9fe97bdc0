"""ringreduce.run() in a process that has used CUDA, of which nothing survives a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "build" / "tests" / "libcuda_driver_emulated.so"

pytestmark = [
    pytest.mark.skipif(not DRIVER.exists(), reason="not built: make emulated"),
]

PROGRAM = """
import ctypes, operator, sys
import ringreduce

driver = ctypes.CDLL(sys.argv[1])
for _ in range(2):
    try:
        print(ringreduce.run(operator.attrgetter("rank"), 2, start=sys.argv[2]))
    except ringreduce.Error as error:
        print(error)
    driver.cuInit(0)
"""


def _lines(start):
    command = [sys.executable, "-c", PROGRAM, str(DRIVER), start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_forked_ranks_are_refused_once_the_driver_is_initialized():
    before, after = _lines("fork")
    assert before == "[0, 1]"
    assert "this process has initialized CUDA" in after and "start='spawn'" in after


def test_spawned_ranks_run_once_the_driver_is_initialized():
    assert _lines("spawn") == ["[0, 1]", "[0, 1]"]
