"""Schedules: what each rank does in a collective, as data.

Build one from the catalogue, look at it, prove it, count its cost, or write your own algorithm in Python. No
byte moves here. docs/algorithms.md explains the model; ``python -m ringreduce.schedules`` prints its table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringreduce._engine import schedules as _engine
from ringreduce._engine import values

__all__ = [
    "Algorithm",
    "Custom",
    "Local",
    "Recv",
    "Round",
    "Schedule",
    "ScheduleError",
    "Send",
    "algorithms",
    "check",
    "custom",
    "register",
    "schedule",
    "table",
]

Span = int | tuple[int, int]
"""A run of chunks, ``(first, count)``; a number is a run of one."""


class ScheduleError(ValueError):
    """Schedules that are not right together; the message names the rank, the round and what is wrong."""


SUMS = ("all_reduce", "reduce_scatter", "reduce")
"""The collectives that combine values."""


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


Function = Callable[[int, int], Schedule]
"""An algorithm written in Python: ``(world, rank) -> Schedule``."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of the catalogue.

    Attributes:
        collective: The collective that it performs.
        name: The name to ask for it by.
        rounds: Its number of rounds, as a formula in n, the world.
        bytes: The bytes that the busiest rank sends, as a formula in n and S, the size of the whole buffer.
        restrictions: What it does not take; empty if it takes any world.
        source: The paper or standard that it is from.
        keeps_rank_order: Whether it adds all ranks' values in rank order and rounds once, for every world: what
            reproducible communicators run. False where nothing is added.
        measured_rounds: The rounds counted for the world that was asked for, else None.
        measured_bytes: Likewise the busiest rank's bytes, in units of S.
    """

    collective: str
    name: str
    rounds: str
    bytes: str
    restrictions: str
    source: str
    keeps_rank_order: bool
    measured_rounds: int | None = None
    measured_bytes: float | None = None


def algorithms(collective: str | None = None, world: int | None = None) -> list[Algorithm]:
    """Lists the catalogue, or the part of it for one collective.

    Args:
        collective: Only algorithms for this collective.
        world: Also count rounds and bytes for this many ranks (root 0, default groups).

    Raises:
        ValueError: There is no such collective, or the world is below 1.
    """
    rows = [row for row in _engine.catalogue() if collective in (None, row[0])]
    if not rows:
        raise ValueError(f"no collective is called {collective!r}")
    if world is None:
        return [Algorithm(*row) for row in rows]
    _number(world, "world")
    return [Algorithm(*row, *_engine.algorithm_cost(row[0], row[1], world)[:2]) for row in rows]


def schedule(
    collective: str,
    algorithm: str,
    world: int,
    rank: int,
    root: int = 0,
    groups: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> Schedule:
    """Makes one rank's schedule by an algorithm of the catalogue or a registered one.

    Args:
        collective: Which collective, for example ``"all_reduce"``.
        algorithm: Which algorithm, for example ``"ring"``.
        world: How many ranks there are.
        rank: Whose schedule to make.
        root: The root of broadcast, reduce, gather and scatter.
        groups: The group (host) of each rank, for two-level algorithms.
        order: All ranks, as rings and chains are to visit them; None: by number, one group after the other.

    Raises:
        ValueError: There is no such collective, algorithm, rank or order.
        ScheduleError: A registered algorithm is wrong for this world.
    """
    values.text(collective, "collective")
    values.text(algorithm, "algorithm")
    for number, name in (world, "world"), (rank, "rank"), (root, "root"):
        _number(number, name)
    registered = custom(algorithm, collective)
    if registered is not None:
        return registered(world, rank)
    return _engine.build(
        collective, algorithm, world, rank, root,
        [_number(group, "each of groups") for group in groups or []],
        [_number(each, "each of order") for each in order or []],
    )  # fmt: skip


def _number(value: int, name: str) -> int:
    """An int of the engine's, which knows what else it must be."""
    return values.whole(value, name, -(2**31), 2**31 - 1)


def check(schedules: Sequence[Schedule] | Function, world: int | None = None) -> None:
    """Proves schedules right by running all ranks on symbols, with sends that wait for their receivers.

    Args:
        schedules: Those of all ranks in rank order, or a function ``(world, rank) -> Schedule``.
        world: How many ranks the function is to be called for.

    Raises:
        ScheduleError: A result would be incomplete, wrong or different between ranks, ranks would block each
            other, or a rule of the model is broken.
        TypeError: An attribute has the wrong type, or a function came without a world.
    """
    if callable(schedules):
        ranks = values.whole(world, "world", 1, 2**31 - 1)
        schedules = [schedules(ranks, rank) for rank in range(ranks)]
    wrong = _engine.check(schedules)
    if wrong:
        raise ScheduleError(wrong)


def _chunks_sent(one: Round) -> int:
    return sum(count for send in one.sends for _, count in map(_pair, send.chunks))


class Custom:
    """An algorithm written in Python, checked for each world when it is first used there.

    Calling it gives one rank's schedule, and raises ScheduleError if the algorithm is wrong for that world.
    """

    def __init__(self, name: str, function: Function, collective: str) -> None:
        self.name = name
        self.function = function
        self.collective = collective
        self._heaviest: dict[int, int] = {}  # by world, of those that were checked

    def __call__(self, world: int, rank: int) -> Schedule:
        """The schedule of one rank."""
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in [0, {world}), not {rank}")
        self._check(world)
        return self._plan(world, rank)

    def heaviest_round(self, world: int) -> int:
        """The most chunks that any rank sends in one round."""
        self._check(world)
        return self._heaviest[world]

    def keeps_rank_order(self, world: int) -> bool:
        """Whether it adds all ranks' values in rank order and rounds once, for this world."""
        return _engine.keeps_rank_order(self._plans(world))

    def _plan(self, world: int, rank: int) -> Schedule:
        asked = f"algorithm {self.name!r}, asked for rank {rank} of {world},"
        try:
            plan = self.function(world, rank)
        except Exception as error:
            raise ScheduleError(f"{asked} raised {type(error).__name__}: {error}") from error
        if not isinstance(plan, Schedule):
            raise ScheduleError(f"{asked} returned no Schedule, but {type(plan).__name__}")
        return plan

    def _plans(self, world: int) -> list[Schedule]:
        return [self._plan(world, each) for each in range(world)]

    def _check(self, world: int) -> None:
        if world not in self._heaviest:
            plans = self._plans(world)
            if plans[0].collective != self.collective:
                raise ScheduleError(f"{self.name!r} plans {plans[0].collective}, not {self.collective}")
            try:
                check(plans)
            except (TypeError, AttributeError) as error:
                raise ScheduleError(
                    f"algorithm {self.name!r} returned what is no schedule: {error}"
                ) from error
            rounds = [each for plan in plans for each in plan.rounds]
            self._heaviest[world] = max(map(_chunks_sent, rounds), default=0)


_custom: dict[tuple[str, str], Custom] = {}


def register(name: str, function: Function, collective: str = "all_reduce") -> None:
    """Makes an algorithm written in Python available by name; registering a name again replaces it.

    Args:
        name: The name to ask for it by; none of the catalogue's for this collective.
        function: ``(world, rank) -> Schedule``. It must be pure: the same arguments, the same schedule.
        collective: The collective that it performs.

    Raises:
        ValueError: There is no such collective, or the catalogue has the name already.
    """
    values.text(name, "name")
    if not callable(function):
        raise TypeError(
            f"function must be a function (world, rank) -> Schedule, not {type(function).__name__}"
        )
    if any(entry.name == name for entry in algorithms(collective)):
        raise ValueError(f"the catalogue has an algorithm called {name!r} for {collective} already")
    _custom[collective, name] = Custom(name, function, collective)


def custom(name: str, collective: str = "all_reduce") -> Custom | None:
    """The registered algorithm of that name, or None."""
    return _custom.get((collective, name))


def table() -> str:
    """The catalogue as a Markdown table, with costs counted for 8 and for 12 ranks."""
    lines = [
        "| collective | name | rounds | bytes sent by the busiest rank | n = 8 | n = 12 | rank order | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry, twelve in zip(algorithms(world=8), algorithms(world=12), strict=True):
        counted = [f"{e.measured_rounds}; {e.measured_bytes:.4g} S" for e in (entry, twelve)]
        order = "yes" if entry.keeps_rank_order else "no" if entry.collective in SUMS else ""
        cells = [
            entry.collective,
            f"`{entry.name}`",
            entry.rounds,
            entry.bytes,
            *counted,
            order,
            entry.source,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
