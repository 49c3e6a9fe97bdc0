"""Scaling efficiency: throughput of N ranks / (N x throughput of one), with the same batch per rank.

Three ways to use the same processes take turns, so that all meet the same machine: one rank alone while the others
sleep, all ranks training together, and all ranks training side by side with nothing to say to each other. The last is
what the machine's memory and clock allow, however good the communication is.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace

import numpy as np

import ringreduce
from ringreduce.train.config import Config, ConfigError
from ringreduce.train.trainer import Step, Trainer

__all__ = ["Efficiency", "measure", "median", "table"]

ROUNDS, STEPS, WARM_UP = 9, 6, 3
ALONE, TOGETHER, SIDE_BY_SIDE = WAYS = ("alone", "together", "side by side")


@dataclass
class Efficiency:
    """What was measured; one value per round in each list, and rates in samples per second of all ranks."""

    ranks: int
    batch_per_rank: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    exposed: list[float] = field(default_factory=list)  # share of all communication that was waited for
    exposed_ms: list[float] = field(default_factory=list)  # a step, mean over the ranks
    last_rank_ms: list[float] = field(default_factory=list)  # the same of the rank that waited least

    def ratios(self, way: str) -> list[float]:
        """Of a way's rate to that of N ranks which each were as fast as the one alone."""
        pairs = zip(self.rates[way], self.rates[ALONE], strict=True)
        return [rate / (self.ranks * alone) for rate, alone in pairs]


def measure(
    comm: ringreduce.Communicator, config: Config, rounds: int = ROUNDS, steps: int = STEPS
) -> Efficiency | None:
    """Every rank calls it; rank 0 gets the result.

    Raises:
        ConfigError: there is one rank only, or the batch cannot be cut for them.
    """
    if comm.size < 2:
        raise ConfigError("ranks: the efficiency of 2 or more can be measured")
    if config.batch % comm.size:
        raise ConfigError(f"batch: {config.batch} is not a multiple of the {comm.size} ranks")
    own = comm.split(comm.rank)
    assert own is not None
    config = replace(config, logical_shards=0)
    single = replace(config, batch=config.batch // comm.size)
    together, apart = Trainer(config, comm), Trainer(single, own)
    found = Efficiency(comm.size, single.batch)
    trainers = {TOGETHER: together, SIDE_BY_SIDE: apart, ALONE: apart if comm.rank == 0 else None}
    for number in range(-1, rounds):
        order = WAYS[number % 3 :] + WAYS[: number % 3]
        for way in order:
            # The first round is for warming up.
            _round(
                comm, trainers[way], way, found if number >= 0 else None, steps if number >= 0 else WARM_UP
            )
    own.close()
    return found if comm.rank == 0 else None


def _round(
    comm: ringreduce.Communicator, trainer: Trainer | None, way: str, found: Efficiency | None, steps: int
) -> None:
    comm.barrier()
    began = time.monotonic()
    done = [trainer.step() for _ in range(steps)] if trainer else []
    seconds = time.monotonic() - began
    rate = trainer.config.batch * steps / seconds if trainer else 0.0
    rate = float(comm.all_reduce(np.array([rate]))[0])
    if found is None:
        return
    # Ranks that train together have each counted the batch of all.
    found.rates[way].append(rate / comm.size if way == TOGETHER else rate)
    if way == TOGETHER:
        _note_exchange(comm, done, found)


def _note_exchange(comm: ringreduce.Communicator, done: list[Step], found: Efficiency) -> None:
    """Means over ranks and steps."""
    own = np.array([[step.exposed, step.communication] for step in done])
    exposed, communication = np.moveaxis(comm.all_gather(own[None]), 2, 0)  # each [ranks, steps]
    found.exposed.append(float(exposed.sum() / max(communication.sum(), 1e-9)))
    found.exposed_ms.append(1e3 * float(exposed.mean()))
    # The rank that came last waited for nothing but the communication.
    found.last_rank_ms.append(1e3 * float(exposed.min(axis=0).mean()))


def table(found: Efficiency) -> str:
    """Medians over the rounds, and the quartiles."""
    lines = [
        ("one rank alone", *median(found.rates[ALONE], 1, "samples/s")),
        (f"{found.ranks} ranks side by side", *median(found.rates[SIDE_BY_SIDE], 1, "samples/s")),
        (f"{found.ranks} ranks together", *median(found.rates[TOGETHER], 1, "samples/s")),
        ("scaling efficiency", *median(found.ratios(TOGETHER))),
        ("the same, of ranks side by side", *median(found.ratios(SIDE_BY_SIDE))),
        ("exposed part of communication", *median(found.exposed)),
        ("exposed communication", *median(found.exposed_ms, 2, "ms a step, mean of the ranks")),
        ("the same, of the rank that is last", *median(found.last_rank_ms, 2, "ms a step")),
    ]
    head = (
        f"{found.batch_per_rank} samples a step and rank, {len(found.exposed)} rounds; medians (quartiles)\n"
    )
    return head + "\n".join(f"{name:36}{value:>8} {rest}" for name, value, rest in lines)


def median(values: list[float], digits: int = 3, unit: str = "") -> tuple[str, str]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f}", f"({low:.{digits}f} to {high:.{digits}f}) {unit}".rstrip()
