"""The probes of blocking.py: one that hangs, or dies, is named, and the others run."""

from __future__ import annotations

import pytest

from .programs import ran
from .ranks import BUILT

pytestmark = BUILT

PROGRAM = """
import os, time
from tests.gpu import blocking

blocking.PROBES = {
    "hangs": lambda: time.sleep(100),
    "a stream": blocking.PROBES["a stream"],
    "dies": lambda: os._exit(3),
    "the last": lambda: (0, "well"),
}
blocking.main()
"""


@pytest.mark.slow
def test_a_probe_that_hangs_or_dies_is_named():
    done = ran("-c", PROGRAM, "--emulated")
    lines = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
    rows = {name.strip(): outcome.strip() for _, name, _, outcome, _ in lines[2:]}
    assert list(rows) == ["hangs", "a stream", "dies", "the last"], done.stdout
    assert rows["hangs"] == "**hangs or dies**, exit code 1" and "in <lambda>" in done.stderr
    assert rows["dies"] == "**hangs or dies**, exit code 3" and rows["the last"] == "well"
