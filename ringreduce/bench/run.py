"""A run of the benchmark: launches of ours and of the peers in rotated order, merged."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ringreduce
from ringreduce import _engine
from ringreduce.bench import peers
from ringreduce.bench.protocol import Effort, Problem
from ringreduce.bench.rank import Row, Task, measure_all
from ringreduce.bench.results import Results, machine_facts, merge, mode_of
from ringreduce.launchers import launched

MPI_LAUNCHERS = ("openmpi", "hydra")


@dataclass(frozen=True)
class Plan:
    """What to run, on ranks of its own or on a launcher's.

    Attributes:
        peers: names ("gloo", "openmpi", "mpich", "impi"), or ("auto",) for those that are there.
        launches: how often ours and the peers are started, in rotated order; budgets are divided by it.
    """

    task: Task
    ranks: int
    peers: tuple[str, ...]
    launches: int | None = None
    note: str = ""


def under_launcher() -> bool:
    """Whether torchrun, mpirun or srun has started this process as one of several."""
    known = launched(os.environ)
    return known is not None and known.size > 1


def _wants(plan: Plan, name: str, is_there: bool) -> bool:
    if name in plan.peers and not is_there:
        raise ValueError(f"--peers: {name} is not installed here")
    return is_there and (name in plan.peers or "auto" in plan.peers)


def run_on_own_ranks(plan: Plan) -> Results:
    """Starts ranks, and each MPI with its own mpirun; returns what they found."""
    known = peers.installed_mpis() if plan.peers else []
    here = {one.vendor: one for one in known}
    mpis = [here[v] for v in peers.VENDORS if _wants(plan, v, v in here)]
    gloo = ("gloo",) if _wants(plan, "gloo", peers.gloo_is_there()) else ()
    launches = plan.launches or (2 if mpis else 1)
    efforts = tuple(replace(effort, budget=effort.budget / launches) for effort in plan.task.efforts)
    task = replace(plan.task, peers=gloo, efforts=efforts)
    before = _engine.probe_exchange()
    rows: list[Row] = []
    notes: list[str] = []
    for launch in range(launches):
        order: list[peers.Mpi | None] = [None, *mpis]
        shift = launch % len(order)
        for one in [*order[shift:], *order[:shift]]:
            if one is None:
                rows += ringreduce.run(measure_all, plan.ranks, replace(task, turn=launch))[0]
            else:
                rows += _mpi_rows(one, task, plan.ranks, notes)
    return _results(plan, rows, notes, before, "own")


def _mpi_rows(one: peers.Mpi, task: Task, ranks: int, notes: list[str]) -> list[Row]:
    groups: dict[tuple[str, Effort], list[Problem]] = {}
    for problem, effort in zip(task.problems, task.efforts, strict=True):
        if problem.collective in peers.TIMED:
            groups.setdefault((problem.collective, effort), []).append(problem)
    rows: list[Row] = []
    for (_, effort), problems in groups.items():
        found, wrong = peers.run_mpi(one, ranks, problems, effort)
        rows += found
        if wrong:
            notes.append(f"{one.vendor}: {wrong}")
            break
    return rows


def run_on_launched_ranks(plan: Plan) -> Results:
    """The same on ranks that a launcher started; every rank calls it, and every rank gets the results."""
    known = launched(os.environ)
    assert known is not None
    chosen = []
    if _wants(plan, "gloo", peers.gloo_is_there()):
        chosen.append("gloo")
    asked = any(name in plan.peers for name in ("auto", *peers.VENDORS))
    if known.launcher in MPI_LAUNCHERS and peers.mpi4py_is_there() and asked:
        chosen.append("mpi")
    before = _engine.probe_exchange() if known.rank == 0 else None
    with ringreduce.init() as comm:
        rows = measure_all(comm, replace(plan.task, peers=tuple(chosen), bind=False))
        plan = replace(plan, ranks=comm.size)
        cores = _cores_of_all(comm)
        results = _results(plan, rows, [], before, known.launcher, probing=comm.rank == 0)
        transport = comm.transport
    results.facts.update(transport=transport, cores=cores, oversubscribed=results.facts["ranks"] > cores)
    return results


def _cores_of_all(comm: ringreduce.Communicator) -> int:
    """Launchers bind a rank to a few cores or one; the job has those of all its ranks."""
    mine = np.zeros(1024, dtype=np.uint8)
    mine[list(os.sched_getaffinity(0))] = 1
    return int(comm.all_reduce(mine, "max").sum())


def _results(
    plan: Plan, rows: list[Row], notes: list[str], before: float | None, launcher: str, probing: bool = True
) -> Results:
    after = _engine.probe_exchange() if probing else None
    task, problem = plan.task, plan.task.problems[0]
    facts: dict[str, Any] = {
        **machine_facts(plan.ranks),
        "transport": "shm",
        "launcher": launcher,
        "dtype": problem.dtype,
        "op": problem.op,
        "in_place": problem.in_place,
        "memory": "shared" if task.shared else "ordinary",
        "bound": task.bind and launcher == "own",
        "async": task.asynchronous,
        "exchange_before_ns": None if before is None else round(before, 1),
        "exchange_after_ns": None if after is None else round(after, 1),
        "mode": mode_of(before, after),
    }
    ours = dict.fromkeys(name for names in task.algorithms.values() for name in names)
    merged = merge(rows, ours, task.efforts[0].check)
    refused = (f"{row['library']}: {row['problem']}" for row in merged if "problem" in row)
    return Results(facts, merged, list(dict.fromkeys([*notes, *refused])))
