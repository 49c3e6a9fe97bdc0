"""Measures the scaling efficiency: throughput of N ranks / (N x throughput of one rank). See docs/training.md."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import numpy as np

import ringreduce
from ringreduce.training.trainer.config import Config, ConfigError, replace
from ringreduce.training.trainer.trainer import StepReport, Trainer
from ringreduce.training.trainer.training_log import Row, make_row

__all__ = ["Efficiency", "measure", "median", "table"]

ROUNDS, STEPS, WARM_UP = 9, 6, 3
ALONE, TOGETHER, SIDE_BY_SIDE = WAYS = ("alone", "together", "side by side")


@dataclass
class Efficiency:
    """The measurements. Each list has one value per round. Rates are in samples per second, over all ranks."""

    ranks: int
    batch_per_rank: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    rows: list[Row] = field(default_factory=list)  # for the ranks together

    def ratios(self, way: str) -> list[float]:
        """Returns the rate in each round, divided by N times the rate of one rank alone."""
        pairs = zip(self.rates[way], self.rates[ALONE], strict=True)
        return [rate / (self.ranks * alone) for rate, alone in pairs]


def measure(
    comm: ringreduce.Communicator, config: Config, rounds: int = ROUNDS, steps: int = STEPS
) -> Efficiency | None:
    """Measures the scaling efficiency. Every rank must call it. Only rank 0 gets the result.

    Raises:
        ConfigError: There is only one rank, or the batch cannot be divided among the ranks.
    """
    if comm.size < 2:
        raise ConfigError("ranks: measuring the efficiency needs 2 or more")
    if config.parameter_server:
        raise ConfigError(
            "parameter_server: the efficiency of its steps is not defined, for ranks do not step together"
        )
    own = comm.split(comm.rank)
    assert own is not None
    config = replace(config, logical_shards=0, trace="")
    single = replace(config, batch=config.batch // comm.size)
    together, apart = Trainer(config, comm), Trainer(single, own)
    found = Efficiency(comm.size, single.batch)
    trainers = {TOGETHER: together, SIDE_BY_SIDE: apart, ALONE: apart if comm.rank == 0 else None}
    for way in WAYS:
        _round(comm, trainers[way], WARM_UP)
    for number in range(rounds):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            rate, done = _round(comm, trainers[way], steps)
            found.rates[way].append(rate)
            if way == TOGETHER:
                found.rows.append(make_row(together, done))
    own.close()
    return found if comm.rank == 0 else None


def _round(
    comm: ringreduce.Communicator, trainer: Trainer | None, steps: int
) -> tuple[float, list[StepReport]]:
    """Runs some steps, and returns the sum of the ranks' rates in samples per second and the steps of this rank."""
    comm.barrier()
    began = time.monotonic()
    done = [trainer.step() for _ in range(steps)] if trainer else []
    seconds = time.monotonic() - began
    rate = trainer.config.batch / trainer.comm.size * steps / seconds if trainer else 0.0
    return float(comm.all_reduce(np.array([rate]))[0]), done


def table(found: Efficiency) -> str:
    """Returns a table of the medians over the rounds, and the quartiles."""
    exposed_ms = [1e3 * row["exposed_s"] for row in found.rows]
    last_rank_ms = [1e3 * (row["exposed_s"] - row["waiting_for_ranks_s"]) for row in found.rows]
    lines = [
        ("one rank alone", *median(found.rates[ALONE], 1, "samples/s")),
        (f"{found.ranks} ranks side by side", *median(found.rates[SIDE_BY_SIDE], 1, "samples/s")),
        (f"{found.ranks} ranks together", *median(found.rates[TOGETHER], 1, "samples/s")),
        ("scaling efficiency", *median(found.ratios(TOGETHER))),
        ("the same for ranks side by side", *median(found.ratios(SIDE_BY_SIDE))),
        ("exposed share of communication", *median([row["exposed_share"] for row in found.rows])),
        ("exposed communication", *median(exposed_ms, 2, "ms per step, mean of the ranks")),
        ("the same for the last rank", *median(last_rank_ms, 2, "ms per step")),
    ]
    rounds = f"{len(found.rows)} rounds; medians (quartiles)"
    head = f"{found.batch_per_rank} samples per step and rank, {rounds}"
    return "\n".join([head, *(f"{name:36}{value:>8} {rest}" for name, value, rest in lines)])


def median(values: list[float], digits: int = 3, unit: str = "") -> tuple[str, str]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f}", f"({low:.{digits}f} to {high:.{digits}f}) {unit}".rstrip()
