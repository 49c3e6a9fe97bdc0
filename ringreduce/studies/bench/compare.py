"""Compares all all-reduce algorithms with all installed peers, on 2 and on 4 ranks. ``make bench`` runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from ringreduce import schedules
from ringreduce.plotting import PlotError
from ringreduce.studies.bench.contest import BenchPlan, run_on_own_ranks
from ringreduce.studies.bench.plot import plot
from ringreduce.studies.bench.problem import Problem
from ringreduce.studies.bench.protocol import Effort
from ringreduce.studies.bench.rank import Task
from ringreduce.studies.bench.report import overview
from ringreduce.studies.bench.results import Results, as_dict

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20)
LARGE = 4 << 20
WORLDS = (2, 4)


def plan(ranks: int, peers: tuple[str, ...], budget: float, sizes: tuple[int, ...] = SIZES) -> BenchPlan:
    """Returns the plan for a number of ranks.

    ``budget`` is in seconds per figure. Large buffers take longer than that, so they get few iterations.
    """
    names = ["auto", "auto+shared", *(entry.name for entry in schedules.algorithms("all_reduce"))]
    problems = tuple(Problem("all_reduce", nbytes) for nbytes in sizes)
    small, large = Effort(budget), Effort(budget, warmup=1, least=3)
    efforts = tuple(large if nbytes >= LARGE else small for nbytes in sizes)
    return BenchPlan(Task(problems, {"all_reduce": tuple(names)}, efforts, bind=True), ranks, peers)


def compare(
    peers: tuple[str, ...], budget: float, folder: Path, worlds: tuple[int, ...] = WORLDS,
    show: Callable[[str], None] = print, sizes: tuple[int, ...] = SIZES,
) -> list[Results]:  # fmt: skip
    """Measures each world, shows a table of it, and writes its plot and all figures to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    everything, written = [], []
    for ranks in worlds:
        results = run_on_own_ranks(plan(ranks, peers, budget, sizes))
        everything.append(results)
        show(overview(results, "all_reduce") + "\n")
        try:
            written.append(plot(results, folder / f"all_reduce-{ranks}-ranks.png"))
        except PlotError as error:
            print(f"no plot: {error}", file=sys.stderr)
    figures = folder / "compare.json"
    figures.write_text(json.dumps([as_dict(results) for results in everything], indent=1) + "\n")
    wrong = sum(results.wrong() for results in everything)
    show(f"Wrong elements: {wrong} {'FAILED' if wrong else 'OK'}")
    show("\n".join(f"Plot: {path}" for path in written))
    show(f"All figures: {figures}")
    return everything
