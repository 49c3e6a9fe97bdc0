"""`ringreduce run --restarts`: ranks that fail are started again, and join the others, which go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import slowly
from tests.processes import on_ranks_of_a_command

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("elastic_program.py")


def run(*arguments, status=0):
    ended = on_ranks_of_a_command(*arguments, timeout=200)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return sorted(ended.stdout.splitlines()), ended.stderr


@pytest.mark.parametrize("victims", [*slowly("1", "0", "0,2")])
def test_a_rank_that_dies_comes_back(victims):
    out, err = run("-n", "3", "--restarts", "2", str(PROGRAM), "die", victims)
    dying = victims.split(",")
    assert out == ["dies"] * len(dying) + [f"rank {rank} of 3: 3.0" for rank in range(3)]
    for victim in dying:
        assert f"rank {victim} was killed by SIGKILL; starting it again as a newcomer" in err


@pytest.mark.parametrize("victims", [*slowly("0", "0,1,2", "1", "0,2")])
def test_a_rank_that_dies_before_it_has_met_the_others(victims):
    """They still wait in init() for the rank, not for a newcomer."""
    dying = victims.split(",")
    out, _ = run("-n", "3", "--restarts", str(len(dying)), str(PROGRAM), "die early", victims)
    assert out == ["dies"] * len(dying) + [f"rank {rank} of 3: 3.0" for rank in range(3)]


TRAINING = """
import os, signal, sys
import torch
import ringreduce
from ringreduce import elastic
if "RINGREDUCE_NEWCOMER" not in os.environ and os.environ["RANK"] in sys.argv[1].split(","):
    os.kill(os.getpid(), signal.SIGKILL)
comm = elastic.start(timeout=60)
model = ringreduce.DataParallel(torch.nn.Linear(8, 1, bias=False), comm)
(weights,) = model.parameters()
sizes = set()
for step in elastic.steps(elastic.State(comm, model=model), 8):
    with step:
        model.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        weights.data -= 0.125 * weights.grad
        sizes.add(step.size)
sys.stdout.write(f"{step.number} {sizes} {[p.tolist() for p in model.parameters()]}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["0,2", "1"])
def test_a_training_that_loses_ranks_before_it_begins(victims, tmp_path):
    """Which then are no newcomers: all ranks make the same calls from the beginning."""
    pytest.importorskip("torch")
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    out, err = run("-n", "3", "--restarts", "2", str(program), victims)
    assert len(out) == 3 and len(set(out)) == 1 and out[0].startswith("7 {3} "), [*out, err]


def test_without_restarts_left_the_job_ends():
    _, err = run("-n", "3", "--restarts", "1", str(PROGRAM), "die", "1,2", status=137)
    assert "starting it again as a newcomer (1 restarts left)" in err and "ending the other ranks" in err


def test_a_newcomer_that_comes_too_late_is_ended():
    out, _ = run("-n", "2", "--restarts", "1", str(PROGRAM), "go on without", "1")
    assert out == ["dies", "rank 0 of 1: 1.0"]


@pytest.mark.slow
def test_a_program_that_cannot_join_is_told():
    _, err = run("-n", "2", "--restarts", "1", str(PROGRAM), "init again", "1", status=1)
    assert "call ringreduce.join() instead of init()" in err


@pytest.mark.slow
def test_prefixed_lines_of_both_lives():
    out, _ = run("-n", "2", "--prefix", "--restarts", "1", str(PROGRAM), "die", "1")
    assert out == ["[0] rank 0 of 2: 2.0", "[1] dies", "[1] rank 1 of 2: 2.0"]


def test_the_option_is_checked():
    _, err = run("-n", "2", "--restarts", "-1", str(PROGRAM), status=2)
    assert "--restarts must be 0 or more, not -1" in err
