"""Which rank owns which elements of a bucket. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Placement", "by_elements", "by_parameters"]


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


def by_parameters(sizes: Sequence[int], loads: list[int], alignment: int) -> Placement:
    """Whole parameters, largest first, each to the rank that has least (Graham, "Bounds on multiprocessing timing
    anomalies", 1969).

    Args:
        loads: what each rank has from other buckets; this bucket's is added.
    """
    before = list(loads)
    owners: dict[int, int] = {}
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += _up(sizes[number], alignment)
    counts = [after - earlier for after, earlier in zip(loads, before, strict=True)]
    ends = [sum(counts[:rank]) for rank in range(len(counts))]
    starts = []
    for number, size in enumerate(sizes):
        owner = owners[number]
        starts.append(ends[owner])
        ends[owner] += _up(size, alignment)
    return Placement(starts, counts)


def _up(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment
