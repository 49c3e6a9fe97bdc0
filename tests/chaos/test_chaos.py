"""A short campaign, the same each time: judged by errors, ranks, agreement and leftovers, not by how long it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Of two ranks, but for those that are late: in a larger group a rank that is waited for may itself wait for another,
# and is blamed; and over TCP, one that connects to another after the group has failed is not told so.
# TODO: larger groups, when both are mended.
SMALL = [
    "0/shm/stop/during",
    "2/shm/never/between",
    "2/shm/too late/before",
    "1/local/never/between",
    "8/tcp/stop/during",
    "1/tcp/never/before",
    "0/tcp/kill/during",
    "12/tcp/exit/between",
    "6/tcp/raise/before",
    "11/tcp/close/during",
    "15/tcp/mismatch/before",
    "0/tcp/late/between",
    "1/shm+tcp/late/before",
]
pytestmark = pytest.mark.timeout(180)


def _chaos(*arguments):
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--lanes", "4", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_ranks_that_end_or_are_late():
    kinds = "kill,exit,raise,close,two,late,mismatch"
    moments = "before,during,between"
    _chaos(
        "--trials",
        "50",
        "--seconds",
        "8",
        "--transports",
        "local,shm",
        "--kinds",
        kinds,
        "--moments",
        moments,
    )


def test_small_groups():
    _chaos("--timeout", "2", "--only", *SMALL)
