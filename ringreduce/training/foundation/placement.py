"""Computes which rank owns which elements of a bucket. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Placement", "balanced", "by_elements", "by_parameters"]


class Placement(NamedTuple):
    """The places of parameters in a bucket's memory, in elements.

    Attributes:
        starts: the start of each parameter.
        counts: the length of each rank's part of the memory. The parts are side by side, in rank order.
    """

    starts: list[int]
    counts: list[int]

    def part(self, rank: int) -> tuple[int, int]:
        """Returns the begin and end of a rank's part."""
        begin = sum(self.counts[:rank])
        return begin, begin + self.counts[rank]


def by_elements(sizes: Sequence[int], world: int, alignment: int) -> Placement:
    """Places parameters one after another, and cuts them into equal parts, also within a parameter.

    Args:
        sizes: the parameters' sizes.
        alignment: the starts of parameters and parts are multiples of it.
    """
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += _up(size, alignment)
    return Placement(starts, [_up(-(-end // world), alignment)] * world)


def balanced(sizes: Sequence[int], loads: list[int], alignment: int) -> list[int]:
    """Returns an owner for each whole parameter.

    Takes the largest parameter first, and gives each to the rank that has least (Graham, "Bounds on multiprocessing
    timing anomalies", 1969).

    Args:
        loads: the load of each rank, to which the parameters are added.
    """
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += _up(sizes[number], alignment)
    return owners


def by_parameters(sizes: Sequence[int], owners: Sequence[int], world: int, alignment: int) -> Placement:
    """Places each rank's parameters one after another, rank by rank.

    Args:
        owners: the rank that owns each parameter.
    """
    counts = [0] * world
    for size, owner in zip(sizes, owners, strict=True):
        counts[owner] += _up(size, alignment)
    ends = [sum(counts[:rank]) for rank in range(world)]
    starts = []
    for size, owner in zip(sizes, owners, strict=True):
        starts.append(ends[owner])
        ends[owner] += _up(size, alignment)
    return Placement(starts, counts)


def _up(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment
