"""Statistics of a rank's calls: how many of each kind, and how long they waited for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringreduce import _engine
from ringreduce.text import human_seconds, layout

__all__ = ["CallCount", "GroupStatistics", "Statistics", "Waits", "of_engine", "of_process"]

MESSAGES = ("send", "recv")


@dataclass(frozen=True)
class CallCount:
    """Calls of one collective that ran one algorithm.

    Attributes:
        collective: the collective's name; "send" or "recv" for messages.
        algorithm: the algorithm's name; empty for messages.
        calls: the number of calls that have begun.
        nbytes: the bytes of this rank's arrays: of a call, those of its input or of its output, whichever is larger.
        waited: the seconds that these calls waited for other ranks. Always 0 for messages, whose waits are known by
            rank only.
    """

    collective: str
    algorithm: str
    calls: int
    nbytes: int
    waited: float


@dataclass(frozen=True)
class Waits:
    """The waits for one rank. Those that end within some microseconds of spinning are not counted.

    Attributes:
        count: their number.
        seconds: the total time.
        longest: the longest wait, in seconds.
        longest_in: the number of the collective with the longest wait; 0 if it was for a message.
    """

    count: int
    seconds: float
    longest: float
    longest_in: int


@dataclass(frozen=True)
class Statistics:
    """The statistics of a rank's calls in a group.

    Attributes:
        group: a name for the group that is the same on all its ranks.
        rank, size: this rank, and the number of ranks.
        members: the ranks' numbers in the whole job.
        transport: how bytes travelled.
        closed: whether the group is closed.
        calls: the calls by collective and algorithm.
        waits: the waits by rank waited for. A rank that was not waited for is absent. -1 stands for waits that were
            for no rank in particular.
        counts: what the transport counts. Over a fabric: the bytes of messages sent and received, those of them that
            were copied on either side or read from the peer's memory, and the registrations of memory. Others count
            nothing.
    """

    group: str
    rank: int
    size: int
    members: tuple[int, ...]
    transport: str
    closed: bool
    calls: tuple[CallCount, ...]
    waits: dict[int, Waits]
    counts: dict[str, int]

    @property
    def waited(self) -> float:
        """The seconds that this rank waited for others."""
        return sum(wait.seconds for wait in self.waits.values())

    @property
    def collectives(self) -> int:
        """The number of collectives that have begun."""
        return sum(count.calls for count in self.calls if count.collective not in MESSAGES)

    @property
    def waited_in_collectives(self) -> float:
        """The seconds that this rank's collectives waited."""
        return sum(count.waited for count in self.calls)

    def since(self, earlier: Statistics) -> Statistics:
        """Returns what has been added since earlier statistics of the same group and rank."""
        before = {(one.collective, one.algorithm): one for one in earlier.calls}
        calls = [_less(one, before.get((one.collective, one.algorithm))) for one in self.calls]
        waits = {peer: _less_wait(wait, earlier.waits.get(peer)) for peer, wait in self.waits.items()}
        return replace(
            self,
            calls=tuple(one for one in calls if one.calls or one.waited),
            waits={peer: wait for peer, wait in waits.items() if wait.count},
            counts={what: number - earlier.counts[what] for what, number in self.counts.items()},
        )

    def __str__(self) -> str:
        """Returns tables of the calls and the waits."""
        own = self.members[self.rank]
        lines = [f"rank {own}: a group of {self.size} ranks over {self.transport}{_of(self)}"]
        if self.calls:
            lines += [
                "",
                *layout([("collective", "algorithm", "calls", "bytes", "waited"), *_call_rows(self)]),
            ]
        if self.waits:
            lines += ["", *layout([("waits for", "count", "total", "longest", "in call"), *_wait_rows(self)])]
        return "\n".join(lines)


def _of(one: Statistics) -> str:
    named = one.members != tuple(range(one.size))
    return (f", rank {one.rank} there" if named else "") + (", closed" if one.closed else "")


def _call_rows(one: Statistics) -> list[tuple[str, ...]]:
    return [
        (count.collective, count.algorithm or "-", f"{count.calls:,}", f"{count.nbytes:,}", human_seconds(count.waited))
        for count in sorted(one.calls, key=lambda count: -count.nbytes)
    ]  # fmt: skip


def _wait_rows(one: Statistics) -> list[tuple[str, ...]]:
    return [
        (
            f"rank {one.members[peer]}" if peer >= 0 else "any rank",
            f"{wait.count:,}",
            human_seconds(wait.seconds),
            human_seconds(wait.longest),
            f"#{wait.longest_in}" if wait.longest_in else "-",
        )
        for peer, wait in sorted(one.waits.items(), key=lambda item: -item[1].seconds)
    ]


def _less(one: CallCount, before: CallCount | None) -> CallCount:
    if before is None:
        return one
    return replace(
        one, calls=one.calls - before.calls, nbytes=one.nbytes - before.nbytes, waited=one.waited - before.waited
    )  # fmt: skip


def _less_wait(wait: Waits, before: Waits | None) -> Waits:
    if before is None:
        return wait
    return replace(wait, count=wait.count - before.count, seconds=wait.seconds - before.seconds)


@dataclass(frozen=True)
class GroupStatistics:
    """The statistics of all ranks of a group.

    Attributes:
        ranks: each rank's statistics, in rank order.
    """

    ranks: tuple[Statistics, ...]

    def __init__(self, ranks: Sequence[Statistics]) -> None:
        """Combines the statistics of all ranks of one group, in any order.

        Raises:
            ValueError: the statistics are of several groups, or ranks are missing.
        """
        ordered = sorted(ranks, key=lambda one: one.rank)
        if not ordered or [one.rank for one in ordered] != list(range(ordered[0].size)):
            raise ValueError(
                f"ranks must have the statistics of every rank once, not of {[one.rank for one in ordered]}"
            )
        if len({one.group for one in ordered}) > 1:
            raise ValueError("ranks must have statistics of one group")
        object.__setattr__(self, "ranks", tuple(ordered))

    @property
    def waited_for(self) -> tuple[float, ...]:
        """The seconds that other ranks waited for each rank's messages.

        A rank may itself have waited for the rank that was late, so see :attr:`lateness`, too.
        """
        return tuple(
            sum(one.waits[rank].seconds for one in self.ranks if rank in one.waits)
            for rank in range(len(self.ranks))
        )

    @property
    def lateness(self) -> tuple[float, ...]:
        """How much later than the earliest rank each rank entered a collective, in seconds on average.

        A collective ends at about the same time on all ranks, so a rank that waited less entered later. The times are
        therefore differences of the ranks' waits in collectives. They are exact where every rank needs data of every
        other rank, and ignore waits of a few microseconds.
        """
        waited = [one.waited_in_collectives for one in self.ranks]
        calls = max(max(one.collectives for one in self.ranks), 1)
        return tuple((max(waited) - own) / calls for own in waited)

    def __str__(self) -> str:
        """Returns a table with a line for each rank."""
        first = self.ranks[0]
        rows: list[tuple[str, ...]] = [
            ("rank", "collectives", "waited", "waited for", "later than the first by")
        ]
        for one, others, late in zip(self.ranks, self.waited_for, self.lateness, strict=True):
            times = (human_seconds(time) for time in (one.waited, others, late))
            rows.append((str(first.members[one.rank]), f"{one.collectives:,}", *times))
        return "\n".join([f"a group of {first.size} ranks over {first.transport}", "", *layout(rows)])


def of_engine(found: _engine.Statistics) -> Statistics:
    """Converts the engine's statistics."""
    *by_rank, any_rank = found.waits
    waits: list[tuple[int, Any]] = [*enumerate(by_rank), (-1, any_rank)]
    return Statistics(
        f"{found.group:016x}",
        found.rank,
        found.world,
        tuple(found.members or range(found.world)),
        found.transport,
        found.closed,
        tuple(
            CallCount(one.collective, one.algorithm, one.calls, one.bytes, one.waited) for one in found.calls
        ),
        {
            peer: Waits(wait.count, wait.total, wait.longest, wait.longest_in)
            for peer, wait in waits
            if wait.count
        },
        found.counts,
    )


def of_process() -> list[Statistics]:
    """Returns the statistics of all groups of this process, those of torch.distributed included.

    Groups that are gone come first; only the last 64 of those are kept. Groups without calls are included while they
    exist. :meth:`ringreduce.Communicator.reset_statistics` does not affect them.
    """
    return [of_engine(found) for found in _engine.all_statistics()]
