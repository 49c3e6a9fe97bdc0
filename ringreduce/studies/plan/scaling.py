"""Predictions for numbers of ranks from one to the largest, and the best trade-offs among predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ringreduce.studies.plan.cluster import Cluster
from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.prediction import Prediction, Simulations, predict
from ringreduce.studies.plan.strategies import Strategy

__all__ = ["best", "front", "scaling", "worlds"]

Named = tuple[str, Prediction]


def worlds(cluster: Cluster, largest: int) -> list[int]:
    """Returns numbers of ranks from one to the largest: doubled inside a host, and then doubled hosts."""
    each = cluster.ranks_per_host
    inside = [1 << step for step in range(each.bit_length()) if 1 << step < each]
    hosts = [each << step for step in range(largest.bit_length()) if each << step < largest]
    return sorted({each for each in [1, *inside, *hosts] if each < largest} | {largest})


def scaling(
    job: Job, cluster: Cluster, chosen: Mapping[str, Strategy], asked: Sequence[int], simulations: Simulations
) -> tuple[list[Named], list[str]]:
    """Predicts each strategy on each number of ranks.

    Returns:
        The predictions, and a sentence for each one that is impossible, because the network has no such number of
        ranks or the strategy cannot use it.
    """
    found: list[Named] = []
    impossible: list[str] = []
    for world in asked:
        for text, each in chosen.items():
            try:
                found.append((text, predict(job, cluster, each, world, simulations)))
            except ValueError as error:
                impossible.append(f"{text} on {world} ranks: {error}")
    return found, impossible


def best(found: Iterable[Named]) -> Named | None:
    """Returns the fastest prediction of the largest number of ranks that fits in memory."""
    fitting = [pair for pair in found if pair[1].fits]
    return max(fitting, key=lambda pair: (pair[1].world, pair[1].rate), default=None)


def front(found: Sequence[Named], cost: Callable[[Prediction], float]) -> list[int]:
    """Returns the places of the predictions that fit, and of which no other has as high a rate at a lower cost.

    They are in the order of rising cost.
    """
    order = sorted(
        (place for place, (_, one) in enumerate(found) if one.fits),
        key=lambda place: (cost(found[place][1]), -found[place][1].rate),
    )
    kept: list[int] = []
    for place in order:
        if not kept or found[place][1].rate > found[kept[-1]][1].rate:
            kept.append(place)
    return kept
