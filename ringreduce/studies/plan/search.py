"""Finds the best settings of strategies within a memory limit, by trying them all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ringreduce.studies.plan.cluster import Cluster
from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.prediction import Prediction, Simulations, predict
from ringreduce.studies.plan.strategies import Strategy, strategy
from ringreduce.studies.plan.strategies.strategy import MB
from ringreduce.studies.plan.strategies.three_d import ThreeD

__all__ = ["Search", "search"]

# Settings that change only speed and memory. Those that change what is trained, such as accumulation, stay as given.
SIZES = ("bucket_mb", "first_bucket_mb")
CHOICES: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("views", "reshard", "prefetch"), ("true", "false")),
    "schedule": ("1f1b", "gpipe"),
    "zero": (0, 1),
}


@dataclass(frozen=True)
class Search:
    """What was tried.

    Attributes:
        world: The number of ranks.
        sizes: The sizes of buckets that were tried, in MiB.
        settings: The number of different settings.
        too_large: How many of them need more memory than a rank has. They were not simulated.
        impossible: How many of them the cluster or the strategy refused.
        fitting: The predictions of the others, by the text that names the setting, the fastest first. Of settings
            that are equally fast, the one that needs the least memory comes first.
        best: The first of each strategy.
    """

    world: int
    sizes: Sequence[int]
    settings: int
    too_large: int
    impossible: int
    fitting: Sequence[tuple[str, Prediction]]
    best: Sequence[tuple[str, Prediction]]

    def summary(self) -> str:
        """Returns what was tried and what was not, in one line."""
        sizes = f"{self.sizes[0]} to {self.sizes[-1]} MiB in powers of two"
        left = [
            f"{number:,} {why}"
            for number, why in ((self.too_large, "need too much memory"), (self.impossible, "are impossible"))
            if number
        ]
        return (
            f"searched on {self.world} ranks: all {self.settings:,} settings, with buckets of {sizes}; "
            f"{'; '.join([*left, f'{len(self.fitting):,} predicted'])}. Not searched: sizes in between, and settings "
            "that change the training, such as accumulation"
        )


def search(
    job: Job, cluster: Cluster, asked: Sequence[str], world: int, simulations: Simulations | None = None
) -> Search:
    """Tries all settings of strategies on a number of ranks.

    Args:
        job, cluster: What is planned. The cluster's device says how much memory a rank has.
        asked: The strategies, as texts such as "zero2" or "ddp:views=true". Settings in the text are fixed.
        world: The number of ranks.
        simulations: The collectives simulated so far.

    Raises:
        ValueError: There is no such strategy or setting, or no setting fits.
    """
    find = simulations or Simulations(cluster)
    limit = cluster.device.memory or math.inf
    sizes = [1 << step for step in range(max(1, math.ceil(math.log2(max(job.nbytes / MB, 1)))) + 1)]
    fitting: list[tuple[str, Prediction]] = []
    best: list[tuple[str, Prediction]] = []
    settings = too_large = impossible = 0
    least = math.inf
    for base in asked:
        own: list[tuple[str, Prediction]] = []
        for text, each in _settings(base, sizes, job, cluster, world):
            settings += 1
            try:
                needed = each.memory(job, world).total
                least = min(least, needed)
                if needed > limit:
                    too_large += 1
                else:
                    own.append((text, predict(job, cluster, each, world, find)))
            except ValueError:
                impossible += 1
        own.sort(key=_order)
        best += own[:1]
        fitting += own
    if not fitting:
        raise ValueError(
            f"device.memory: no setting fits; the smallest needs {least / 1e9:.3g} GB on {world} ranks"
        )
    return Search(
        world, sizes, settings, too_large, impossible, sorted(fitting, key=_order), sorted(best, key=_order)
    )


def _order(pair: tuple[str, Prediction]) -> tuple[float, float]:
    return -pair[1].rate, pair[1].memory.total


def _settings(
    base: str, sizes: Sequence[int], job: Job, cluster: Cluster, world: int
) -> Iterator[tuple[str, Strategy]]:
    """Yields all settings of a strategy, and their texts. Those that the text has already are fixed.

    Tensor parallelism stays within a host. Ranks that divide a model make as many samples in a step as they would with
    a copy each, so the number of their microbatches follows.
    """
    kind = type(strategy(base))
    fixed = {one.partition("=")[0] for one in base.split(":")[1:]}
    choices: Mapping[str, Sequence[Any]] = {
        **dict.fromkeys(SIZES, sizes), **CHOICES,
        "tensor": _divisors(math.gcd(cluster.ranks_per_host, world), world),
        "stages": _divisors(world, len(job.layers)),
    }  # fmt: skip
    free = {key: choices[key] for key in kind.model_fields if key in choices and key not in fixed}
    for values in product(*free.values()):
        text = ":".join([base, *(f"{key}={value}" for key, value in zip(free, values, strict=True))])
        each = strategy(text)
        if isinstance(each, ThreeD):
            if world % (each.tensor * each.stages):
                continue
            if "microbatches" not in fixed:
                text += f":microbatches={each.tensor * each.stages}"
                each = strategy(text)
        yield text, each


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]
