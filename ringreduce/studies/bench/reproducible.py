"""Measures the cost of the reproducible mode. The same ranks measure it and ``auto`` in turn."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from ringreduce.studies.bench.compare import LARGE, SIZES, WORLDS
from ringreduce.studies.bench.contest import BenchPlan, run_on_own_ranks
from ringreduce.studies.bench.problem import BLOCKWISE, Problem
from ringreduce.studies.bench.protocol import Effort
from ringreduce.studies.bench.rank import REPRODUCIBLE, Task
from ringreduce.studies.bench.report import heading, spread
from ringreduce.studies.bench.results import Results
from ringreduce.text import human_bytes, human_us, layout

COLLECTIVES = ("all_reduce", "reduce_scatter")
LAUNCHES = 4  # an even number, so that each of the two goes first equally often


def plan(ranks: int, budget: float, sizes: tuple[int, ...], launches: int) -> BenchPlan:
    problems, efforts = [], []
    for collective in COLLECTIVES:
        unit = 4 * ranks if collective in BLOCKWISE else 4
        for nbytes in dict.fromkeys(-(-size // unit) * unit for size in sizes):
            problems.append(Problem(collective, nbytes))
            efforts.append(Effort(budget, warmup=1, least=3) if nbytes >= LARGE else Effort(budget))
    both: tuple[str, ...] = ("auto", REPRODUCIBLE)
    names = dict.fromkeys(COLLECTIVES, both)
    task = Task(tuple(problems), names, tuple(efforts), floor=False, bind=True)
    return BenchPlan(task, ranks, (), launches)


def table(results: Results) -> str:
    """Returns a table of times and their ratio, which is the cost. ± is half the range of the launches."""
    lines = heading(results)
    for collective in results.collectives():
        rows, ratios = [["", "auto, us", "", f"{REPRODUCIBLE}, us", "", "ratio"]], []
        for nbytes in results.sizes(collective):
            auto, kept = (results.row(collective, nbytes, name) for name in ("auto", REPRODUCIBLE))
            if auto is None or kept is None or "problem" in auto or "problem" in kept:
                continue
            ratios.append(kept["median_us"] / max(auto["median_us"], 1e-4))
            cells = [
                text
                for row in (auto, kept)
                for text in (human_us(row["median_us"]), f"±{spread(row) / 2:.0f}%")
            ]
            rows.append([human_bytes(nbytes), *cells, f"{ratios[-1]:.2f}"])
        mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
        lines += [
            "",
            collective,
            *layout(rows),
            f"{collective}: {mean:.2f} times the time of auto (geometric mean)",
        ]
    return "\n".join([*lines, *results.notes])


def cost(
    budget: float, worlds: tuple[int, ...] = WORLDS, sizes: tuple[int, ...] = SIZES, launches: int = LAUNCHES,
    show: Callable[[str], None] = print,
) -> list[Results]:  # fmt: skip
    """Measures each world, and shows a table of it. ``budget`` is in seconds per figure."""
    if os.environ.get("RINGREDUCE_REPRODUCIBLE") == "1":
        raise ValueError("--reproducible compares with the default mode; unset RINGREDUCE_REPRODUCIBLE")
    everything = []
    for ranks in worlds:
        everything.append(run_on_own_ranks(plan(ranks, budget, sizes, launches)))
        show(table(everything[-1]) + "\n")
    return everything
