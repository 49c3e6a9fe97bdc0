"""The probes of blocking.py: one that hangs, or dies, is named, and the others run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .probe import ROOT
from .ranks import EMULATED_LIBRARY

pytestmark = pytest.mark.skipif(not EMULATED_LIBRARY.exists(), reason="not built: make emulated")

PROGRAM = """
import os, time
from tests.gpu import blocking

blocking.HANGS = 3.0
first = next(iter(blocking.PROBES.items()))
blocking.PROBES = {
    **dict([first]),
    "hangs": lambda: time.sleep(100),
    "a stream": blocking.PROBES["a stream"],
    "dies": lambda: os._exit(3),
    "2 ranks": lambda: blocking.queues(2),
}
blocking.main()
"""


def test_a_probe_that_hangs_or_dies_is_named():
    command = [sys.executable, "-c", PROGRAM, "--emulated"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    rows = [
        [cell.strip() for cell in line.split("|")[1:4]] for line in done.stdout.splitlines() if "|" in line
    ]
    wanted = [
        *(("captures side by side", "well"), ("hangs", "**hangs or dies**, exit code 1")),
        *(("a stream", "at once"), ("dies", "**hangs or dies**, exit code 3"), ("2 ranks", "well")),
    ]
    assert [(name, outcome) for name, _, outcome in rows[2:]] == wanted, done.stdout + done.stderr
    assert "in <lambda>" in done.stderr  # where it hung
