"""A short campaign, the same each time: judged by errors, ranks, agreement and leftovers, not by how long it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import slowly

ROOT = Path(__file__).resolve().parents[3]
KINDS = "kill,stop,exit,raise,close,two,never,late,too late,mismatch"  # all that need no privileges
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("trials", ["8", *slowly("65")])
def test_a_campaign(trials):
    """65 trials are half of all combinations."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.chaos",
        "--seed",
        "1",
        "--lanes",
        "4",
        "--timeout",
        "2",
        "--kinds",
        KINDS,
    ]
    ended = subprocess.run(
        [*command, "--trials", trials, "--seconds", "100"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("folders", ["1", *slowly("12")])
def test_checkpoints_of_several_jobs(folders):
    pytest.importorskip("torch")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.chaos.checkpoints",
         "--seed", "1", "--campaigns", folders, "--seconds", "120"],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
