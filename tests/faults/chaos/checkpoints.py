"""Jobs of any number of ranks, one after the other, in one folder of checkpoints, with ranks that die amid a write.

Each job begins anew or resumes. What it begins with must be the state of one job at one step, and no older than what
the last job that ended well has left: the exit status is 1 if it ever is not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import secrets
import stat
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from ringreduce import elastic
from tests.training.elastic.ranks import Job, Me, kill_self

EVERY = 3  # steps between two checkpoints
JOBS = 6  # in one folder
TENSORS = [f"x{number}" for number in range(7)]


class Began(NamedTuple):
    """What a job began with: of which job it was, after which step, and all values of its tensors."""

    job: int
    step: int
    values: set[float]


class Plan(NamedTuple):
    """A job.

    Attributes:
        steps: how many, beyond those that any checkpoint has, if it resumes.
        dies: for each rank that dies, in which of its writes, and how much of the file is there then.
        goes_on: whether the others train on without it.
    """

    ranks: int
    steps: int
    resume: bool
    keep: int
    dies: dict[int, tuple[int, float]]
    goes_on: bool


def draw(dice: random.Random) -> Plan:
    ranks = dice.randint(1, 4)
    victims = dice.sample(range(ranks), dice.randint(1, ranks)) if dice.random() < 0.6 else []
    return Plan(
        ranks=ranks,
        steps=dice.randint(1, 5 * EVERY),
        resume=dice.random() < 0.6,
        keep=dice.randint(1, 3),
        dies={rank: (dice.randint(1, 3), dice.uniform(0, 1.5)) for rank in victims},
        goes_on=dice.random() < 0.5,
    )


def member(me: Me, folder: Path, number: int, count: int, plan: Plan) -> Began | None:
    """Trains on a rank until so many steps are done. Returns what the first one began with."""
    torch.set_num_threads(1)
    if me.number in plan.dies:
        _die_in_write(*plan.dies[me.number])
    comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
    state = elastic.State(comm, job=number, **{name: torch.zeros(3) for name in TENSORS})
    saved = elastic.Checkpoints(folder, every=EVERY, keep=plan.keep, resume=plan.resume)
    found: Began | None = None
    minimum = 1 if plan.goes_on else plan.ranks
    for step in elastic.steps(state, count, minimum=minimum, timeout=0.3, checkpoints=saved):
        with step:
            tensors = [getattr(state, name) for name in TENSORS]
            found = found or Began(state.job, step.number, {float(value) for one in tensors for value in one})
            for tensor in tensors:
                tensor.fill_(value_after(state.job, step.number + 1))
    return found


def value_after(job: int, steps: int) -> float:
    """Returns what all tensors are after so many steps of a job that began anew, and of those that went on from it."""
    return 1000.0 * job + steps if steps else 0.0


def _die_in_write(number: int, part: float) -> None:
    """Kills this process in one of its writes, with a part of the file there: 1 or more is all, under its own name."""
    sync, files = os.fsync, itertools.count(1)
    due = False

    def synced(handle: int) -> None:
        nonlocal due
        about = os.fstat(handle)
        if due:
            kill_self()
        if stat.S_ISREG(about.st_mode) and next(files) == number:
            if part < 1:
                os.ftruncate(handle, int(part * about.st_size))
                kill_self()
            due = True
        sync(handle)

    os.fsync = synced


def campaign(dice: random.Random) -> list[str]:
    """Runs jobs in one folder. Returns what was wrong."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        # The job and the step of the last one that ended well.
        folder, least = Path(name) / "checkpoints", (-1, 0)
        for number in range(JOBS):
            plan = draw(dice)
            most = max((int(path.name.split("-")[1]) for path in folder.glob("step-*")), default=0)
            count = plan.steps + (most if plan.resume else 0)
            outcomes = Job(
                partial(member, folder=folder, number=number, count=count, plan=plan), plan.ranks
            ).outcomes()
            for outcome in filter(None, outcomes):
                if outcome.error is not None and not plan.dies:
                    wrong.append(f"job {number}, {plan}: {outcome.error!r}")
                if outcome.value is not None:
                    wrong += [
                        f"job {number}, {plan}: {text}" for text in judge(outcome.value, number, plan, least)
                    ]
            began = outcomes[0] and outcomes[0].value
            if began and all(outcome and outcome.error is None for outcome in outcomes):
                least = began.job, count
    return wrong


def judge(began: Began, number: int, plan: Plan, least: tuple[int, int]) -> list[str]:
    wrong = []
    if began.values != {value_after(began.job, began.step)}:
        wrong.append(f"no state of one job and step: {began}")
    if not plan.resume and (began.job, began.step) != (number, 0):
        wrong.append(f"should have begun anew: {began}")
    if plan.resume and (began.job, began.step) < least:
        wrong.append(f"the newest has job and step {least}: {began}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos.checkpoints", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long campaigns are begun")
    parser.add_argument("--campaigns", type=int, help="at most so many; by default any number")
    parser.add_argument("--seed", type=int, help="of all that is drawn; by default a new one")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    began, number, bad = time.monotonic(), 0, 0
    while time.monotonic() - began < given.seconds and number != given.campaigns:
        wrong = campaign(random.Random(f"{seed}/{number}"))
        number, bad = number + 1, bad + bool(wrong)
        print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
    print(f"{number} folders of checkpoints of {JOBS} jobs each, {bad} of them wrong; seed {seed}")
    return 1 if bad or not number else 0


if __name__ == "__main__":
    sys.exit(main())
