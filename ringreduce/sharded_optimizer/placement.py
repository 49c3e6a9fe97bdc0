"""Which rank owns which elements of a bucket. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Placement", "balanced", "by_elements", "by_parameters"]


class Placement(NamedTuple):
    """Where parameters lie in a bucket's memory, in elements.

    Attributes:
        starts: of each parameter.
        counts: each rank's part of the memory; the parts lie side by side, in rank order.
    """

    starts: list[int]
    counts: list[int]

    def part(self, rank: int) -> tuple[int, int]:
        """Begin and end of a rank's part."""
        begin = sum(self.counts[:rank])
        return begin, begin + self.counts[rank]


def by_elements(sizes: Sequence[int], world: int, alignment: int) -> Placement:
    """Parameters one behind the other, cut into equal parts wherever that falls.

    Args:
        sizes: of the parameters.
        alignment: starts of parameters and of parts are multiples of it.
    """
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += _up(size, alignment)
    return Placement(starts, [_up(-(-end // world), alignment)] * world)


def balanced(sizes: Sequence[int], loads: list[int], alignment: int) -> list[int]:
    """The owner of each of some whole parameters: the largest first, each to the rank that has least (Graham, "Bounds
    on multiprocessing timing anomalies", 1969).

    Args:
        loads: what each rank has already; these parameters are added.
    """
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += _up(sizes[number], alignment)
    return owners


def by_parameters(sizes: Sequence[int], owners: Sequence[int], world: int, alignment: int) -> Placement:
    """Each rank's parameters one behind the other, rank by rank.

    Args:
        owners: the rank of each parameter.
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
