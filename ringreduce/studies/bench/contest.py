"""Runs the benchmark: launches ringreduce and the peers in rotated order, and merges the results."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ringreduce
from ringreduce.build.mpi_library import NoMpi
from ringreduce.start.launchers import launched, launcher_of
from ringreduce.studies.bench import peers
from ringreduce.studies.bench.facts import machine_facts, of_all
from ringreduce.studies.bench.problem import Problem
from ringreduce.studies.bench.programs import Contestant, Launches, Turn, question_of, refusals, take_turns
from ringreduce.studies.bench.protocol import Effort
from ringreduce.studies.bench.rank import Facts, Task, measure_all
from ringreduce.studies.bench.results import Results, Row, merge

OURS = "ringreduce"


@dataclass(frozen=True)
class BenchPlan:
    """A job to run on new ranks or on those of a launcher.

    Attributes:
        task: What the ranks measure.
        ranks: The number of ranks.
        peers: Names ("gloo", "openmpi", "mpich", "impi"), or ("auto",) for all that are installed.
        launches: How often ringreduce and the peers are started, in rotated order. Budgets are divided by it. None
            means 2 if MPIs are compared, otherwise 1.
    """

    task: Task
    ranks: int
    peers: tuple[str, ...]
    launches: int | None = None


def under_launcher() -> bool:
    """Returns whether torchrun, mpirun or srun has started this process as one of several."""
    known = launched(os.environ)
    return known is not None and known.size > 1


def _wants(plan: BenchPlan, name: str, is_there: bool) -> bool:
    if name in plan.peers and not is_there:
        where = "" if name == "gloo" else f"; set {peers.HOMES} to its prefix"
        raise ValueError(f"--peers: {name} is not installed here{where}")
    return is_there and (name in plan.peers or "auto" in plan.peers)


def run_on_own_ranks(plan: BenchPlan) -> Results:
    """Starts ranks, and each MPI with its own mpirun, and returns the results."""
    here = {one.vendor: one for one in peers.installed_mpis()} if plan.peers else {}
    mpis = [here[v] for v in peers.VENDORS if _wants(plan, v, v in here)]
    gloo = ("gloo",) if _wants(plan, "gloo", peers.gloo_is_there()) else ()
    launches = plan.launches or (2 if mpis else 1)
    efforts = tuple(replace(effort, budget=effort.budget / launches) for effort in plan.task.efforts)
    task = replace(plan.task, peers=gloo, efforts=efforts)
    facts: list[Facts] = []

    def ours(launch: int) -> list[Row]:
        try:
            rows, facts[:] = ringreduce.run(measure_all, plan.ranks, replace(task, turn=launch))[0]
        except ringreduce.RankFailed as error:
            if isinstance(error.__cause__, (ValueError, NoMpi, MemoryError)):  # the options are invalid
                raise ValueError(str(error.__cause__)) from error
            raise
        return list(rows)

    turns: dict[str, Turn] = {OURS: ours}
    for one in mpis:
        turns[one.vendor] = partial(_programs_rows, one.contestant(one.vendor), task, plan.ranks)
    return _results(plan, take_turns(turns, launches), facts, "own")


def _programs_rows(one: Contestant, task: Task, ranks: int, launch: int) -> list[Row]:
    """Returns the rows of a program, which runs once per collective. After a failure it is not started again."""
    groups: dict[tuple[Problem, Effort], list[int]] = {}
    for problem, effort in zip(task.problems, task.efforts, strict=True):
        groups.setdefault((replace(problem, nbytes=0), effort), []).append(problem.nbytes)
    rows: list[Row] = []
    for (problem, effort), sizes in groups.items():
        found = one.rows(question_of(problem, sizes, ranks, effort))
        rows += found
        if any("problem" in row for row in found):
            break
    return rows


def run_on_launched_ranks(plan: BenchPlan) -> Results:
    """Runs a plan on the ranks of a launcher. Every rank must call it, and gets the results."""
    known = launched(os.environ)
    assert known is not None
    chosen = []
    if _wants(plan, "gloo", peers.gloo_is_there()):
        chosen.append("gloo")
    asked = any(name in plan.peers for name in ("auto", *peers.VENDORS))
    if launcher_of(known).is_mpirun and asked:
        if peers.mpi4py_is_there():
            chosen.append("mpi")
        elif known.rank == 0:
            print(
                "ringreduce: MPI's own functions are not timed, because mpi4py is missing; pip install mpi4py",
                file=sys.stderr,
            )
    facts: list[Facts] = []
    with ringreduce.init() as comm:
        task = replace(plan.task, peers=tuple(chosen), bind=False)

        def ours(launch: int) -> list[Row]:
            rows, facts[:] = measure_all(comm, task)
            return rows

        done = Launches()
        done.take(OURS, ours, 0, probed=comm.rank == 0)
        return _results(replace(plan, ranks=comm.size), done, facts, known.launcher)


def _results(plan: BenchPlan, done: Launches, ranks: list[Facts], launcher: str) -> Results:
    task, problem = plan.task, plan.task.problems[0]
    # Launchers bind each rank to one core or a few. The job has the cores of all its ranks.
    cores = len({(one["host"], core) for one in ranks for core in one["rank_cores"]})
    facts: dict[str, Any] = {
        **machine_facts(plan.ranks),
        **{
            key: of_all(ranks, key) for key in ("host", "cpu", "kernel", "governor", "transport", "interface")
        },
        "rank_cores": [one["rank_cores"] for one in ranks],
        "launcher": launcher,
        "dtype": problem.dtype,
        "op": problem.op,
        "in_place": problem.in_place,
        "root": problem.root,
        "memory": "shared" if task.shared else "ordinary",
        "bound": task.bind and launcher == "own",
        "async": task.asynchronous,
        **done.facts(),
    }
    if launcher != "own":
        facts.update(cores=cores, oversubscribed=plan.ranks > cores)
    ours = dict.fromkeys(name for names in task.algorithms.values() for name in names)
    merged = merge(done.rows, ours, task.efforts[0].check)
    return Results(facts, merged, refusals(merged))
