"""Schedules and their parts, as dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringreduce._engine import schedules as _engine

Span = int | tuple[int, int]
"""Consecutive chunks, ``(first, count)``. An int means a single chunk."""


class ScheduleError(ValueError):
    """The schedules of the ranks do not form a correct collective.

    The message names the rank, the round and what is wrong.
    """


def _pair(span: Span) -> tuple[int, int]:
    return span if isinstance(span, tuple) else (span, 1)


@dataclass
class Send:
    """A message with these chunks, as they are when the round begins, to each of these peers (in ascending order)."""

    chunks: Sequence[Span]
    peers: list[int]

    def __post_init__(self) -> None:
        self.chunks = [_pair(span) for span in self.chunks]


@dataclass
class Recv:
    """The receipt of a message. The k-th ``Recv`` from a peer takes the k-th message from that peer to this rank.

    The message replaces these chunks or, with ``reduce``, is reduced into them. If several messages of a round are
    reduced into the same chunks, they and this rank's own value are combined in rank order.
    """

    chunks: Sequence[Span]
    peer: int
    reduce: bool = False

    def __post_init__(self) -> None:
        self.chunks = [_pair(span) for span in self.chunks]


@dataclass
class Local:
    """A copy, or with ``reduce`` a reduction, from chunks ``source`` of this rank to its chunks ``to``."""

    to: Span
    source: Span
    reduce: bool = False

    def __post_init__(self) -> None:
        self.to, self.source = _pair(self.to), _pair(self.source)


@dataclass
class Round:
    """Sends, receives and local steps that may all proceed at the same time."""

    sends: list[Send] = field(default_factory=list)
    recvs: list[Recv] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)

    def chunks_sent(self) -> int:
        """Returns the number of chunks that are sent. A chunk sent to several peers counts once."""
        return sum(count for send in self.sends for _, count in map(_pair, send.chunks))


@dataclass
class Schedule:
    """What one rank does in one collective.

    Attributes:
        collective: A name in :data:`ringreduce.schedules.COLLECTIVES`.
        world: The number of ranks.
        rank: The rank that runs this schedule.
        chunks: The number of parts that the buffer is cut into. Chunks from this number on are scratch.
        rounds: The rounds, one after the other.
        root: The root of broadcast, reduce, gather and scatter.
        scratch: The number of temporary chunks in addition to the buffer.
    """

    collective: str
    world: int
    rank: int
    chunks: int
    rounds: list[Round] = field(default_factory=list)
    root: int = 0
    scratch: int = 0

    def __str__(self) -> str:
        """Returns the schedule as text, with a line for each round."""
        return _engine.describe(self)

    def cost(self) -> tuple[int, float, float]:
        """Returns the number of rounds, and what this rank sends and receives in units of the whole buffer."""
        return _engine.cost(self)
