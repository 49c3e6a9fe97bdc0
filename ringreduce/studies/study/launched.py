"""One launch of a study on ranks that mpirun, torchrun or srun started, possibly on several hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ringreduce
from ringreduce.communicator import Communicator
from ringreduce.start.launchers import launched
from ringreduce.studies.study.launch import Found, measure_all
from ringreduce.studies.study.plan import Plan
from ringreduce.studies.study.runner import CellGroup, Runner, locked, opened, status
from ringreduce.studies.study.tables import won

__all__ = ["run"]


def run(plan: Plan | None, folder: Path, budget: float | None) -> int:
    """Adds one launch with each transport to the folder, which rank 0 writes. Each further run adds another one."""
    with ringreduce.init() as comm:
        if comm.rank != 0:
            return _follow(comm)
        try:
            return _lead(comm, plan, folder, budget)
        except ValueError:  # the plan or the folder is wrong: release the other ranks, which wait for rank 0
            comm.broadcast_object(None)
            raise


def _measured(comm: Communicator, group: CellGroup, blocks: list[Any], seconds: float) -> Found:
    with ringreduce.init(
        comm.rank, comm.size, comm.all_gather_object, timeout=comm.timeout, transport=group.transport
    ) as own:
        return measure_all(own, blocks, seconds, False)


def _follow(comm: Communicator) -> int:
    while (asked := comm.broadcast_object()) is not None:
        _measured(comm, *asked)
    return 0


def _lead(comm: Communicator, plan: Plan | None, folder: Path, budget: float | None) -> int:
    known = launched(os.environ)
    assert known is not None

    def measure(group: CellGroup, blocks: list[Any], seconds: float) -> Found:
        comm.broadcast_object((group, blocks, seconds))
        return _measured(comm, group, blocks, seconds)

    with locked(folder):
        study, plan = opened(folder, plan, known.launcher)
        if comm.size not in plan.worlds:
            worlds = ", ".join(map(str, plan.worlds))
            raise ValueError(f"worlds: the plan has {worlds}, but the launcher has started {comm.size} ranks")
        runner = Runner(study, plan, measure)
        for group in runner.groups():
            cells = runner.unfinished(group) if group.world == comm.size else {}
            if cells and study.spent_s < (budget or plan.budget_s):
                runner.launch(group, cells)
        more = any(runner.unfinished(group) for group in runner.groups())
        comm.broadcast_object(None)
    print(won(study, plan))
    if more:
        print("The same command adds another launch.")
    return status(study)
