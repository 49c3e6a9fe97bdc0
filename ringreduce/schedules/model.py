"""What a schedule is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringreduce._engine import schedules as _engine

Span = int | tuple[int, int]
"""A run of chunks, ``(first, count)``; a number is a run of one."""


class ScheduleError(ValueError):
    """Schedules that are not right together; the message names the rank, the round and what is wrong."""


def _pair(span: Span) -> tuple[int, int]:
    return span if isinstance(span, tuple) else (span, 1)


@dataclass
class Send:
    """One message: these chunks, as they are when the round begins, to each of these peers (ascending)."""

    chunks: Sequence[Span]
    peers: list[int]

    def __post_init__(self) -> None:
        self.chunks = [_pair(span) for span in self.chunks]


@dataclass
class Recv:
    """The matching end: the k-th one from a peer takes that peer's k-th message to this rank.

    What comes replaces these chunks or, with ``reduce``, is reduced into them. Several reducing ones of the
    same chunks in one round are combined in rank order, this rank's own value standing in its own place.
    """

    chunks: Sequence[Span]
    peer: int
    reduce: bool = False

    def __post_init__(self) -> None:
        self.chunks = [_pair(span) for span in self.chunks]


@dataclass
class Local:
    """A copy, or with ``reduce`` a reduction, from one run of this rank's chunks to another."""

    to: Span
    source: Span
    reduce: bool = False

    def __post_init__(self) -> None:
        self.to, self.source = _pair(self.to), _pair(self.source)


@dataclass
class Round:
    """Everything that may proceed at the same time."""

    sends: list[Send] = field(default_factory=list)
    recvs: list[Recv] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)

    def chunks_sent(self) -> int:
        """How many chunks go out; to several peers counted once."""
        return sum(count for send in self.sends for _, count in map(_pair, send.chunks))


@dataclass
class Schedule:
    """What one rank does in one collective.

    Attributes:
        collective: ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"broadcast"``, ``"reduce"``,
            ``"gather"``, ``"scatter"``, ``"all_to_all"`` or ``"barrier"``.
        world: How many ranks there are.
        rank: Whose schedule this is.
        chunks: Into how many parts the buffer is cut; chunks from this number on are scratch.
        rounds: The rounds, one after the other.
        root: The root of broadcast, reduce, gather and scatter.
        scratch: How many temporary chunks there are beside the buffer.
    """

    collective: str
    world: int
    rank: int
    chunks: int
    rounds: list[Round] = field(default_factory=list)
    root: int = 0
    scratch: int = 0

    def __str__(self) -> str:
        """The schedule in words, a line per round."""
        return _engine.describe(self)

    def cost(self) -> tuple[int, float, float]:
        """Rounds, and what this rank sends and receives, in units of the whole buffer."""
        return _engine.cost(self)
