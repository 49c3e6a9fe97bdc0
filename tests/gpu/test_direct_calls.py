"""Ranks that are processes combine directly what lies in each other's memory, as soon as they have mapped it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not HAS_CARD and not EMULATED_LIBRARY.exists(), reason="not built: make emulated"),
]
# Of the emulated GPU, in which all other memory that tests use can be shared.
SETTINGS = {"RINGREDUCE_EMULATED_BLOCKS": "64", "RINGREDUCE_EMULATED_SHARED": str(8 << 20)}


@pytest.mark.parametrize(
    ("what", "world"),
    [
        *(("collectives", 2), ("collectives", 3), ("reallocated", 2), ("freed", 3), ("many", 2)),
        *(("unlike", 2), ("pieces", 3), ("killed", 2), ("killed", 3)),
    ],
)
def test_direct_calls(what, world):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **SETTINGS}
    program = [sys.executable, "-m", "tests.gpu.programs_of_direct_calls", what, str(world)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=100, env=env)
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr
