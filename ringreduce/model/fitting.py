"""Fitting a cost model to measured all-reduces."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ringreduce import _engine
from ringreduce.bench.ours import ours
from ringreduce.bench.protocol import Buffers, Problem
from ringreduce.communicator import Communicator
from ringreduce.model.model import CAUSES, Costs, Model, of_their_own, weights
from ringreduce.study.clocks import Clock, Start
from ringreduce.study.timing import medians

__all__ = ["Point", "fit", "fit_costs", "measure_points"]

K, M = 1 << 10, 1 << 20
# Bytes that are measured: more of them where caches end.
SIZES = {
    "inside": (
        16, 128, 768, 3 * K, 12 * K, 24 * K, 48 * K, 96 * K, 192 * K, 384 * K, 768 * K,
        3 * M // 2, 3 * M, 6 * M, 12 * M, 24 * M, 48 * M, 96 * M,
    ),
    "between": (16, 768, 12 * K, 24 * K, 48 * K, 96 * K, 192 * K, 768 * K, 3 * M, 12 * M, 48 * M),
}  # fmt: skip
# Where costs begin from: seconds of a round, of a message, of a change of a core's rank and of a byte.
BYTES = {"copy_out": 1e-10, "copy_in": 1e-10, "combine": 1e-10}
FIRST = {
    "inside": {"round": 1e-7, "send": 2e-7, "receive": 2e-7, "change": 2e-6, "latency": 2e-7, **BYTES},
    "between": {"round": 1e-6, "send": 5e-6, "receive": 5e-6, "latency": 5e-5, "transfer": 1e-9, **BYTES},
}
RANGE = 9.0  # how far costs may be from these: so many times the factor e
STEPS, SMOOTH = 40, 0.03
PASSES = 3  # over all that is measured: what disturbs the machine for a moment spoils one of them
LONG = 0.3  # seconds: where a call takes so long, larger buffers are left out
LEAST = 5  # iterations, whatever the budget


class Point(NamedTuple):
    """What was measured: seconds of one call, the slowest rank's median."""

    algorithm: str
    world: int
    nbytes: int
    seconds: float


def fit(comm: Communicator, budget: float = 0.03, sizes: Sequence[int] | None = None) -> Model:
    """Measures all-reduces of several algorithms, sizes and worlds, and finds the costs that explain them best.

    The simulator says what the chain of events that a call waits for consists of: how many rounds, messages and bytes.
    The costs of these are those that give the measured times, by least squares of the logarithms of the ratios, where
    outliers count less, with costs that change little from size to size. What is left is kept for each algorithm, and
    corrects its predictions. Every rank must call it.

    Args:
        comm: ranks of one host, of several, or both: those of the host that has the most tell what messages inside
            hosts cost, and the first ranks of the hosts what those between them do.
        budget: seconds for each of up to 600 measurements.
        sizes: bytes of the buffers; None: 18 from 16 B to 96 MiB inside hosts, 11 up to 48 MiB between them.

    Returns:
        The model, the same on all ranks.

    Raises:
        ValueError: there is only one rank.
    """
    if comm.size < 2:
        raise ValueError("comm: a model is fitted to 2 or more ranks, and this is one")
    cores = os.cpu_count() or 1
    made = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, {cores} cores",
        "transport": comm.transport,
        "exchange_ns": str(_engine.probe_exchange()),
        "ranks": " + ".join(str(len(ranks)) for ranks in comm.hosts),
    }
    widest = max(comm.hosts, key=len)
    groups = {"inside": widest, "between": [ranks[0] for ranks in comm.hosts]}
    found: dict[str, Costs] = {}
    for place, members in groups.items():
        points = _measured(comm, members, sizes or SIZES[place], budget)
        if points and comm.rank == 0:
            found[place] = fit_costs(points, cores, place)
    own = Model(made=made, cores=cores, **found) if comm.rank == 0 else None
    model: Model = comm.broadcast_object(own)
    return model


def _measured(comm: Communicator, members: Sequence[int], sizes: Sequence[int], budget: float) -> list[Point]:
    """Times of up to three worlds of these ranks; every rank of comm gets them."""
    names = of_their_own("all_reduce")
    mine = list[Point]()
    for world in sorted({2, max(len(members) // 2, 2), len(members)}) if len(members) > 1 else ():
        group = comm.split(0 if comm.rank in members[:world] else None)
        if group is not None:
            with group, on_cores_of_their_own(group):
                mine += measure_points(group, names, sizes, budget)
        comm.barrier()
    everybodys: list[Point] = comm.broadcast_object(mine, members[0])
    return everybodys


@contextmanager
def on_cores_of_their_own(comm: Communicator) -> Iterator[None]:
    """Ranks of one host go to its cores in turn, as those of ringreduce bench do, for a while."""
    usable = os.sched_getaffinity(0)
    cores = sorted(usable)
    os.sched_setaffinity(0, {cores[comm.local_rank % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def measure_points(
    comm: Communicator, algorithms: Sequence[str], sizes: Sequence[int], budget: float, passes: int = PASSES
) -> list[Point]:
    """Times all-reduces of float32 as a study does. Every rank gets the same. Passes divide the budget."""
    found = defaultdict[tuple[str, int], list[float]](list)
    start = Start(comm, Clock(comm))
    for _ in range(passes):
        for nbytes in sizes:
            buffers = Buffers(ours(comm, "auto"), Problem("all_reduce", nbytes))
            libraries = [ours(comm, name) for name in algorithms]
            times = medians(libraries, buffers, start, budget / passes, LEAST)
            for name, seconds in zip(algorithms, times, strict=True):
                found[name, nbytes].append(seconds)
            if min(times) > LONG:
                break
    return [Point(name, comm.size, nbytes, float(np.median(each))) for (name, nbytes), each in found.items()]


def fit_costs(points: Sequence[Point], cores: int, place: str = "inside") -> Costs:
    """The costs of messages inside hosts, or between them, that explain measured times best, and what is left."""
    sizes = sorted({point.nbytes for point in points})
    causes = list(FIRST[place])
    first = np.log(np.repeat(list(FIRST[place].values()), len(sizes)))
    # Costs that differ from one size to the next one count as errors, too.
    differences = SMOOTH * np.kron(np.eye(len(causes)), np.diff(np.eye(len(sizes)), axis=0))

    def costs_of(logarithms: Any) -> Costs:
        rows = np.exp(logarithms).reshape(len(causes), len(sizes)).tolist()
        seconds = dict.fromkeys(CAUSES, [0.0] * len(sizes)) | dict(zip(causes, rows, strict=True))
        return Costs(sizes=sizes, seconds=seconds, errors=(0.0, 0.0))

    @lru_cache(maxsize=1)  # errors and slopes are asked for one after the other
    def explain(content: bytes) -> tuple[Any, Any]:
        """Errors, as logarithms of ratios, and what they become where each cost's logarithm grows."""
        costs = costs_of(np.frombuffer(content))
        model = Model(made={}, cores=cores, **{place: costs})
        paid_for = np.array([costs.seconds[cause] for cause in causes])
        errors, slopes = [], []
        for point in points:
            outcome = model.predict(point.algorithm, point.nbytes, point.world)
            known = weights(sizes, point.nbytes, point.world / cores if place == "inside" else 1)
            spent = np.array([outcome.made_of[cause] for cause in causes]) / outcome.seconds
            errors.append(np.log(outcome.seconds / point.seconds))
            # A cost is paid as often as the time that went to it says, for as long as the chain stays the same.
            paid = paid_for * np.array([known[cause] for cause in causes])
            slopes.append((paid * (spent / paid.sum(axis=1))[:, None]).ravel())
        return np.array(errors), np.array(slopes)

    def errors(logarithms: Any) -> Any:
        return np.concatenate([explain(logarithms.tobytes())[0], differences @ logarithms])

    def slopes(logarithms: Any) -> Any:
        return np.vstack([explain(logarithms.tobytes())[1], differences])

    bounds = (first - RANGE, first + RANGE)
    found = least_squares(
        errors, first, slopes, bounds, loss="soft_l1", f_scale=0.2, max_nfev=STEPS, tr_solver="lsmr"
    ).x
    left = -explain(found.tobytes())[0]
    middle, high = (float(np.quantile(np.abs(np.exp(-left) - 1), share)) for share in (0.5, 0.9))
    update = {"corrections": _by_algorithm(points, sizes, left), "errors": (middle, high)}
    return costs_of(found).model_copy(update=update)


def _by_algorithm(
    points: Sequence[Point], sizes: Sequence[int], left: Any
) -> dict[str, dict[int, list[float]]]:
    """What is left by algorithm and world, at each size; where one was not measured, as at its neighbours."""
    rows = defaultdict[str, dict[int, dict[int, float]]](lambda: defaultdict(dict))
    for point, value in zip(points, left, strict=True):
        rows[point.algorithm][point.world][point.nbytes] = float(value)
    return {
        name: {
            world: np.interp(np.log(sizes), np.log(sorted(row)), [row[each] for each in sorted(row)]).tolist()
            for world, row in by_world.items()
        }
        for name, by_world in rows.items()
    }
