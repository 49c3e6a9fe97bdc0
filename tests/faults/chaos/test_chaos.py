"""A short campaign, the same each time: judged by errors, ranks, agreement and leftovers, not by how long it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import slowly
from tests.processes import python

ROOT = Path(__file__).resolve().parents[3]
KINDS = "kill,stop,exit,raise,close,two,never,late,too late,mismatch"  # all that need no privileges


@pytest.mark.parametrize("trials", ["8", *slowly("65")])
def test_a_campaign(trials):
    """65 trials are half of all combinations."""
    campaign = ["--seed", 1, "--lanes", 4, "--timeout", 2, "--kinds", KINDS, "--trials", trials]
    ended = python("-m", "tests.faults.chaos", *campaign, "--seconds", 100, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("folders", ["1", *slowly("12")])
def test_checkpoints_of_several_jobs(folders):
    pytest.importorskip("torch")
    options = ["--seed", 1, "--campaigns", folders, "--seconds", 120]
    ended = python("-m", "tests.faults.chaos.checkpoints", *options, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr
