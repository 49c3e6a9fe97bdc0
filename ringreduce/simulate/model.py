"""A cost model of this machine: fitted to measured collectives, kept in a file, and used to predict others."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from scipy.optimize import least_squares

from ringreduce import schedules
from ringreduce.bench.ours import ours
from ringreduce.bench.protocol import Buffers, Effort, Problem, measure
from ringreduce.blobs import gather_bytes
from ringreduce.communicator import Communicator
from ringreduce.simulate.files import Table, first_problem
from ringreduce.simulate.network import Costs, Flat, MessageCosts, Network
from ringreduce.simulate.simulation import Outcome, simulate

__all__ = ["Model", "Point", "fit"]

SIZES = (32, 1 << 10, 12 << 10, 96 << 10, 768 << 10, 5 << 20, 20 << 20, 80 << 20)  # bytes that are measured
# Where costs begin from: seconds of a round, of a message, of a change of a core's rank and of a byte.
FIRST = {
    "round": 1e-7, "send": 2e-7, "receive": 2e-7, "change": 2e-6, "copy_out": 1e-10, "copy_in": 1e-10,
    "combine": 1e-10, "latency": 2e-7,
}  # fmt: skip
BY_THE_BYTE = ("copy_out", "copy_in", "combine")
RANGE = 9.0  # how far costs may be from these: so many times the factor e
STEPS, SMOOTH = 60, 0.03


class Point(NamedTuple):
    """What was measured: seconds of one call, the slowest rank's median."""

    algorithm: str
    world: int
    nbytes: int
    seconds: float


class Model(Table):
    """What collectives cost on one host, or between hosts of one rank each.

    Attributes:
        made: when and with what, for readers.
        cores: that ranks share; of the host.
        sizes: bytes of whole buffers for which costs are known. Between them they are interpolated, over the
            logarithm of the size; beyond them those of the nearest are taken.
        seconds: by cause, for each of sizes: of a round, of a message that is sent or received, of a change of a core's
            rank, of a byte that is copied out, copied in or combined, and a message's latency.
        errors: median and 90th percentile of the relative errors of what it was fitted to.
    """

    made: dict[str, str]
    cores: int
    sizes: list[int]
    seconds: dict[str, list[float]]
    errors: tuple[float, float]

    def save(self, path: Path) -> None:
        """Writes the model as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Model:
        """A model that was saved.

        Raises:
            ValueError: the file cannot be read, or is no model. One line that names it.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            raise ValueError(f"{path}: no cost model: {first_problem(error)}") from error

    def network(self, world: int, nbytes: int) -> Network:
        """This host with so many ranks, and what messages of calls of that size cost on it."""
        weights = _weights(self.sizes, nbytes, world / self.cores)
        cost = {cause: float(np.dot(weights[cause], values)) for cause, values in self.seconds.items()}
        inside = MessageCosts(
            send_us=1e6 * cost["send"], receive_us=1e6 * cost["receive"], latency_us=1e6 * cost["latency"],
            send_rate=1 / cost["copy_out"], receive_rate=1 / cost["copy_in"], combine_rate=1 / cost["combine"],
        )  # fmt: skip
        costs = Costs(
            cores=self.cores, round_us=1e6 * cost["round"], switch_us=1e6 * cost["change"], inside=[inside]
        )
        return Network(topology=Flat(hosts=1, ranks_per_host=world, rate=math.inf), costs=costs)

    def predict(
        self, algorithm: str, nbytes: int, world: int, collective: str = "all_reduce", **options: Any
    ) -> Outcome:
        """How long a collective takes here; arguments and errors are those of :func:`simulate`."""
        return simulate(algorithm, nbytes, self.network(world, nbytes), collective, **options)


def _weights(sizes: Sequence[int], nbytes: int, crowd: float) -> dict[str, Any]:
    """How much the cost for each size counts for a buffer of this one, by cause.

    crowd: ranks on a core. What is copied and combined shares caches with what its other ranks have.
    """
    knots = np.log(sizes)

    def near(size: float) -> Any:
        place = float(np.clip(np.log(max(size, 1)), knots[0], knots[-1]))
        return np.array([np.interp(place, knots, unit) for unit in np.eye(len(sizes))])

    alone, together = near(nbytes), near(nbytes * max(crowd, 1))
    return {cause: together if cause in BY_THE_BYTE else alone for cause in FIRST}


def fit(comm: Communicator, budget: float = 0.05) -> Model:
    """Measures all-reduces of several algorithms, sizes and worlds, and finds the costs that explain them best.

    The simulator says what the chain of events that a call waits for consists of: how many rounds, messages and bytes.
    The costs of these are those that give the measured times, by least squares of the logarithms of the ratios, where
    outliers count less, with costs that change little from size to size. Every rank must call it.

    Args:
        comm: ranks of one host.
        budget: seconds for each of about 150 measurements.

    Returns:
        The model, the same on all ranks.

    Raises:
        ValueError: the ranks are on several hosts, or there is only one.
    """
    if len(comm.hosts) > 1 or comm.size < 2:
        raise ValueError("comm: a model is fitted to 2 or more ranks of one host")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})  # as ringreduce bench does
    points = []
    for world in sorted({2, max(comm.size // 2, 2), comm.size}):
        group = comm.split(0 if comm.rank < world else None)
        if group is not None:
            points += measure_points(
                group, [entry.name for entry in schedules.algorithms("all_reduce")], SIZES, budget
            )
            group.close()
        comm.barrier()
    made = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, {len(cores)} cores",
        "ranks": str(comm.size),
    }
    own = fit_points(points, len(cores), made).model_dump_json().encode() if comm.rank == 0 else b""
    os.sched_setaffinity(0, cores)
    return Model.model_validate_json(gather_bytes(comm, own)[0])


def measure_points(
    comm: Communicator, algorithms: Sequence[str], sizes: Sequence[int], budget: float
) -> list[Point]:
    """Times all-reduces of float32; every rank gets the same."""
    points = []
    for nbytes in sizes:
        problem = Problem("all_reduce", nbytes)
        effort = Effort(budget, warmup=3 if nbytes < 1 << 20 else 1, least=5, check=False)
        buffers = Buffers(ours(comm, "auto"), problem)
        for name in algorithms:
            found = measure(ours(comm, name), buffers, effort)
            points.append(Point(name, comm.size, nbytes, 1e-6 * found["median_us"]))
    return points


def fit_points(points: Sequence[Point], cores: int, made: dict[str, str]) -> Model:
    """The model that explains measured times best."""
    sizes = sorted({point.nbytes for point in points})
    first = np.log(np.repeat(list(FIRST.values()), len(sizes)))
    # Costs that differ from one size to the next one count as errors, too.
    differences = SMOOTH * np.kron(np.eye(len(FIRST)), np.diff(np.eye(len(sizes)), axis=0))

    def explain(logarithms: Any) -> tuple[Any, Any]:
        """Errors, as logarithms of ratios, and what they become where each cost's logarithm grows."""
        costs = np.exp(logarithms).reshape(len(FIRST), len(sizes))
        model = _model(costs, sizes, cores, made)
        errors, slopes = [], []
        for point in points:
            outcome = model.predict(point.algorithm, point.nbytes, point.world)
            weights = np.array(list(_weights(sizes, point.nbytes, point.world / cores).values()))
            spent = np.array([outcome.made_of[cause] for cause in FIRST]) / outcome.seconds
            errors.append(np.log(outcome.seconds / point.seconds))
            # A cost is paid as often as the time that went to it says, for as long as the chain stays the same.
            paid = costs * weights
            slopes.append((paid * (spent / paid.sum(axis=1))[:, None]).ravel())
        return np.array(errors), np.array(slopes)

    def errors(logarithms: Any) -> Any:
        return np.concatenate([explain(logarithms)[0], differences @ logarithms])

    def slopes(logarithms: Any) -> Any:
        return np.vstack([explain(logarithms)[1], differences])

    bounds = (first - RANGE, first + RANGE)
    found = least_squares(errors, first, slopes, bounds, loss="soft_l1", f_scale=0.2, max_nfev=STEPS).x
    left = np.abs(np.exp(explain(found)[0]) - 1)
    return _model(np.exp(found).reshape(len(FIRST), len(sizes)), sizes, cores, made, left)


def _model(costs: Any, sizes: Sequence[int], cores: int, made: dict[str, str], errors: Any = (0.0,)) -> Model:
    seconds = {cause: [float(one) for one in row] for cause, row in zip(FIRST, costs, strict=True)}
    middle, high = (float(np.quantile(errors, share)) for share in (0.5, 0.9))
    return Model(made=made, cores=cores, sizes=list(sizes), seconds=seconds, errors=(middle, high))
