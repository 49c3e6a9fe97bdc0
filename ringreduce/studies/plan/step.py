"""Simulates a step of one rank: computations and collectives that run at the same time, and what they share.

Streams do one operation at a time. An operation begins when those that it waits for have ended. Operations of several
streams that run at the same time may need the same resource: the link or the cores. Each needs a share of it, which the
simulation of the collective alone gives (the part of the time in which its busiest link, or its core, is busy). If the
shares add up to more than one, all of them slow down by the sum, as under fair scheduling of cores and fair division of
links. If they do not, one fits into the gaps of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringreduce.studies.plan.operations import Operation

__all__ = ["Demand", "Timed", "chain", "run"]


@dataclass(frozen=True)
class Demand:
    """What an operation needs.

    Attributes:
        seconds: Its time if nothing else runs.
        shares: The share of each resource that it needs meanwhile.
    """

    seconds: float
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """An operation, and when it began and ended, in seconds from the begin of the step."""

    operation: Operation
    began: float
    ended: float


def run(operations: Sequence[Operation], demands: Sequence[Demand]) -> list[Timed]:
    """Returns when each operation began and ended.

    Raises:
        ValueError: An operation waits for one that never ends.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    waits, last = [], dict[str, int]()
    for number, one in enumerate(operations):
        before = {*one.after, last.get(one.stream, number)} - {number}
        last[one.stream] = number
        waits.append(len(before))
        for each in before:
            followers[each].append(number)
    began, ended = dict[int, float](), dict[int, float]()
    left = [demand.seconds for demand in demands]
    running, starting = list[int](), [number for number, count in enumerate(waits) if not count]
    now = 0.0
    while running or starting:
        began.update(dict.fromkeys(starting, now))
        running += starting
        starting = []
        rates = _rates([demands[number] for number in running])
        ends = [left[number] / rate for number, rate in zip(running, rates, strict=True)]
        passed = min(ends)
        now += passed
        still = []
        for number, rate, end in zip(running, rates, ends, strict=True):
            if end > passed * (1 + 1e-12):
                left[number] -= passed * rate
                still.append(number)
                continue
            ended[number] = now
            for each in followers[number]:
                waits[each] -= 1
                if not waits[each]:
                    starting.append(each)
        running = still
    if len(ended) < len(operations):
        raise ValueError("the operations of the step wait for each other")
    return [Timed(one, began[number], ended[number]) for number, one in enumerate(operations)]


def chain(timeline: Sequence[Timed]) -> list[int]:
    """Returns the numbers of the operations that the end of the step waited for, one after the other.

    Each began when the one before it ended, so their times add up to that of the step.
    """
    previous: list[int | None] = []
    last: dict[str, int] = {}
    for number, one in enumerate(timeline):
        previous.append(last.get(one.operation.stream))
        last[one.operation.stream] = number
    at: int | None = max(range(len(timeline)), key=lambda number: timeline[number].ended)
    found: list[int] = []
    while at is not None:
        found.append(at)
        waited = [*timeline[at].operation.after, *(() if previous[at] is None else (previous[at],))]
        at = max(
            (each for each in waited if each is not None), key=lambda each: timeline[each].ended, default=None
        )
    return found[::-1]


def _rates(demands: Sequence[Demand]) -> list[float]:
    """Returns how fast each of the running operations proceeds; 1 is as fast as alone."""
    wanted: dict[str, float] = defaultdict(float)
    for demand in demands:
        for resource, share in demand.shares.items():
            wanted[resource] += share
    return [
        1 / max([1.0, *(wanted[each] for each, share in demand.shares.items() if share)])
        for demand in demands
    ]
