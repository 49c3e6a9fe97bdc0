"""One launch of a study on ranks that mpirun, torchrun or srun has started, perhaps on several hosts."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import ringreduce
from ringreduce.blobs import gather_bytes
from ringreduce.communicator import Communicator
from ringreduce.launchers import launched
from ringreduce.study.launch import Found, measure_all
from ringreduce.study.plan import Plan
from ringreduce.study.run import Group, Runner, locked, opened, status
from ringreduce.study.tables import won

__all__ = ["run"]


def run(plan: Plan | None, folder: Path, budget: float | None) -> int:
    """Adds one launch of each transport to the folder, which rank 0 keeps. Started again, it adds another one."""
    with ringreduce.init() as comm:
        if comm.rank != 0:
            return _follow(comm)
        try:
            return _lead(comm, plan, folder, budget)
        except ValueError:  # of the plan or the folder: the others wait to be told what to measure
            _tell(comm, None)
            raise


def _tell(comm: Communicator, what: Any) -> Any:
    """What rank 0 says, to all."""
    return pickle.loads(gather_bytes(comm, pickle.dumps(what) if comm.rank == 0 else b"")[0])


def _measured(comm: Communicator, group: Group, blocks: list[Any], seconds: float) -> Found:
    exchange = partial(gather_bytes, comm)
    with ringreduce.init(
        comm.rank, comm.size, exchange, timeout=comm.timeout, transport=group.transport
    ) as own:
        return measure_all(own, blocks, seconds, False)


def _follow(comm: Communicator) -> int:
    while (asked := _tell(comm, None)) is not None:
        _measured(comm, *asked)
    return 0


def _lead(comm: Communicator, plan: Plan | None, folder: Path, budget: float | None) -> int:
    known = launched(os.environ)
    assert known is not None

    def measure(group: Group, blocks: list[Any], seconds: float) -> Found:
        _tell(comm, (group, blocks, seconds))
        return _measured(comm, group, blocks, seconds)

    with locked(folder):
        study, plan = opened(folder, plan, known.launcher)
        if comm.size not in plan.worlds:
            worlds = ", ".join(map(str, plan.worlds))
            raise ValueError(f"worlds: the plan has {worlds}, and the launcher has started {comm.size} ranks")
        runner = Runner(study, plan, measure)
        for group in runner.groups():
            cells = runner.unfinished(group) if group.world == comm.size else {}
            if cells and study.spent_s < (budget or plan.budget_s):
                runner.launch(group, cells)
        more = any(runner.unfinished(group) for group in runner.groups())
        _tell(comm, None)
    print(won(study, plan))
    if more:
        print("The same command adds another launch.")
    return status(study)
