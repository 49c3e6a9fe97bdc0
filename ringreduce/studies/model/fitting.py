"""Fits a cost model to measured all-reduces."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache, partial
from time import perf_counter, process_time, thread_time
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ringreduce import _engine, cores
from ringreduce.communicator import Communicator
from ringreduce.communicator.arrays.arrays import empty
from ringreduce.communicator.clocks import Clock
from ringreduce.studies.bench.ours import ours
from ringreduce.studies.bench.protocol import Buffers, Problem
from ringreduce.studies.measuring.common_start import Start
from ringreduce.studies.measuring.timing import medians
from ringreduce.studies.model.model import CAUSES, Costs, Model, of_their_own, weights

__all__ = ["Point", "fit", "fit_costs", "measure_points"]

K, M = 1 << 10, 1 << 20
# The measured sizes in bytes. They are closer to each other where caches end.
SIZES = {
    "inside": (
        16, 128, 768, 3 * K, 12 * K, 24 * K, 48 * K, 96 * K, 192 * K, 384 * K, 768 * K,
        3 * M // 2, 3 * M, 6 * M, 12 * M, 24 * M, 48 * M, 96 * M,
    ),
    "between": (16, 768, 12 * K, 24 * K, 48 * K, 96 * K, 192 * K, 768 * K, 3 * M, 12 * M, 48 * M),
}  # fmt: skip
# Initial costs in seconds: of a round, of a message, of a switch between ranks on a core, and of a byte.
BYTES = {"copy_out": 1e-10, "copy_in": 1e-10, "combine": 1e-10}
FIRST = {
    "inside": {"round": 1e-7, "send": 2e-7, "receive": 2e-7, "change": 2e-6, "latency": 2e-7, **BYTES},
    "between": {"round": 1e-6, "send": 5e-6, "receive": 5e-6, "latency": 5e-5, "transfer": 1e-9, **BYTES},
}
RANGE = 9.0  # costs may differ from the initial ones by factors of up to e to this power
STEPS, SMOOTH = 40, 0.03
PASSES = 3  # over all measurements, so that a brief disturbance of the machine spoils only one of them
LONG = 0.3  # seconds: once a call takes this long, larger buffers are left out
LEAST = 5  # iterations, whatever the budget
COLD, MOST_TURNS = 64 * M, 256  # bytes that take turns, more than caches hold, and in how many buffers
BUSY, MOST = 0.02, 500  # seconds and calls in which the time of the progress thread is measured


class Point(NamedTuple):
    """A measurement: the median time of a call on the slowest rank, in seconds."""

    algorithm: str
    world: int
    nbytes: int
    seconds: float


def fit(
    comm: Communicator, budget: float = 0.03, sizes: Sequence[int] | None = None, training: bool = False
) -> Model:
    """Measures all-reduces of several algorithms, sizes and worlds, and fits the costs that explain their times best.

    The simulator reports the rounds, messages and bytes in the chain of events that a call waits for. Their costs are
    fitted to the measured times by robust least squares on the logarithms of the ratios, so outliers count less. A
    penalty keeps costs similar from one size to the next. The remaining error of each algorithm is kept, and corrects
    its predictions. Every rank must call it.

    Args:
        comm: The ranks to measure on. The host with the most ranks gives the costs of messages inside hosts, and the
            first rank of each host gives the costs of messages between hosts.
        budget: Seconds for each of up to 600 measurements.
        sizes: Buffer sizes in bytes. None means 18 sizes from 16 B to 96 MiB inside hosts, and 11 up to 48 MiB
            between hosts.
        training: Whether to measure as training calls collectives: on buffers in shared memory, which caches no longer
            have, because a step uses each once, and by the progress thread, whose time on its core is measured as
            well. Otherwise buffers are ordinary, each call's has just been written, and calls are blocking.

    Returns:
        The model, the same on all ranks.

    Raises:
        ValueError: There is only one rank.
    """
    if comm.size < 2:
        raise ValueError("comm: fitting a model needs 2 or more ranks, and there is only 1")
    count = _engine.usable_cores()
    made = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, {count} cores",
        "transport": comm.transport,
        "exchange_ns": str(_engine.probe_exchange()),
        "ranks": " + ".join(str(len(ranks)) for ranks in comm.hosts),
    }
    widest = max(comm.hosts, key=len)
    groups = {"inside": widest, "between": [ranks[0] for ranks in comm.hosts]}
    found: dict[str, Costs] = {}
    for place, members in groups.items():
        points, busy = _measured(comm, members, sizes or SIZES[place], budget, training)
        if points and comm.rank == 0:
            found[place] = fit_costs(points, count, place).model_copy(
                update={"busy": [busy[nbytes] for nbytes in sorted(busy)]}
            )
    own = Model(made=made, cores=count, **found) if comm.rank == 0 else None
    model: Model = comm.broadcast_object(own)
    return model


def _measured(
    comm: Communicator, members: Sequence[int], sizes: Sequence[int], budget: float, training: bool
) -> tuple[list[Point], dict[int, float]]:
    """Measures up to three worlds of these ranks, and how busy cores are. Every rank of comm gets the results."""
    names = of_their_own("all_reduce")
    mine, busy = list[Point](), dict[int, float]()
    for world in sorted({2, max(len(members) // 2, 2), len(members)}) if len(members) > 1 else ():
        group = comm.split(0 if comm.rank in members[:world] else None)
        if group is not None:
            with group, on_cores_of_their_own(group):
                mine += (points := measure_points(group, names, sizes, budget, training=training))
                busy |= measure_busy(group, points) if training else {}
        comm.barrier()
    everybodys: tuple[list[Point], dict[int, float]] = comm.broadcast_object((mine, busy), members[0])
    return everybodys


@contextmanager
def on_cores_of_their_own(comm: Communicator) -> Iterator[None]:
    """Binds the ranks of a host to its cores in turn, as ringreduce bench does, while the context is open.

    Hosts with a rank each may be containers of one machine, so their ranks are on different cores, too.
    """
    usable = os.sched_getaffinity(0)
    cores.bind(comm.rank if len(comm.hosts) == comm.size else comm.local_rank)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def measure_points(
    comm: Communicator, algorithms: Sequence[str], sizes: Sequence[int], budget: float, passes: int = PASSES,
    training: bool = False,
) -> list[Point]:  # fmt: skip
    """Times float32 all-reduces as a study does. Every rank gets the same points. The passes share the budget."""
    found = defaultdict[tuple[str, int], list[float]](list)
    start = Start(comm, Clock(comm))
    for _ in range(passes):
        for nbytes in sizes:
            turns = max(1, min(COLD // nbytes, MOST_TURNS)) if training else 1
            buffers = Buffers(ours(comm, "auto", training), Problem("all_reduce", nbytes), turns)
            libraries = [ours(comm, name, training, training) for name in algorithms]
            times = medians(libraries, buffers, start, budget / passes, LEAST)
            for name, seconds in zip(algorithms, times, strict=True):
                found[name, nbytes].append(seconds)
            if min(times) > LONG:
                break
    return [Point(name, comm.size, nbytes, float(np.median(each))) for (name, nbytes), each in found.items()]


def measure_busy(comm: Communicator, points: Sequence[Point]) -> dict[int, float]:
    """Returns, for each measured size, the part of an all-reduce in which the progress thread keeps a core busy.

    The simulator knows the time of messages, but not who spends it: the network, or the kernel on the rank's core.
    """
    shares = dict[int, float]()
    for nbytes in sorted({point.nbytes for point in points}):
        seconds = min(point.seconds for point in points if point.nbytes == nbytes)
        buffer = np.asarray(empty(nbytes // 4, "float32"))
        buffer[:] = 0
        call = partial(comm.all_reduce, buffer, async_op=True)
        call().wait()
        comm.barrier()
        began, used = perf_counter(), process_time() - thread_time()
        for _ in range(round(min(max(BUSY / seconds, LEAST), MOST))):
            call().wait()
        used = process_time() - thread_time() - used
        shares[nbytes] = min(used / (perf_counter() - began), 1.0)
    most = comm.all_reduce(np.array(list(shares.values())), "max")
    return dict(zip(shares, most.tolist(), strict=True))


def fit_costs(points: Sequence[Point], cores: int, place: str = "inside") -> Costs:
    """Fits the costs of messages inside hosts, or between hosts, and the corrections to the measured times."""
    sizes = sorted({point.nbytes for point in points})
    causes = list(FIRST[place])
    first = np.log(np.repeat(list(FIRST[place].values()), len(sizes)))
    # Differences between the costs of neighbouring sizes count as errors too.
    differences = SMOOTH * np.kron(np.eye(len(causes)), np.diff(np.eye(len(sizes)), axis=0))

    def costs_of(logarithms: Any) -> Costs:
        rows = np.exp(logarithms).reshape(len(causes), len(sizes)).tolist()
        seconds = dict.fromkeys(CAUSES, [0.0] * len(sizes)) | dict(zip(causes, rows, strict=True))
        return Costs(sizes=sizes, seconds=seconds, errors=(0.0, 0.0))

    @lru_cache(maxsize=1)  # the solver asks for the errors and the slopes of the same costs in turn
    def explain(content: bytes) -> tuple[Any, Any]:
        """Returns the errors, as logarithms of ratios, and their derivatives by the logarithms of the costs."""
        costs = costs_of(np.frombuffer(content))
        model = Model(made={}, cores=cores, **{place: costs})
        paid_for = np.array([costs.seconds[cause] for cause in causes])
        errors, slopes = [], []
        for point in points:
            outcome = model.predict(point.algorithm, point.nbytes, point.world)
            known = weights(sizes, point.nbytes, point.world / cores if place == "inside" else 1)
            spent = np.array([outcome.made_of[cause] for cause in causes]) / outcome.seconds
            errors.append(np.log(outcome.seconds / point.seconds))
            # As long as the chain of events stays the same, a cost is paid as often as the time spent on it implies.
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
    """Returns the remaining errors by algorithm and world, at each size, interpolated where one was not measured."""
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
