"""The catalogue of algorithms, and the registered algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringreduce._engine import schedules as _engine
from ringreduce._engine import values
from ringreduce.schedules.collectives import COLLECTIVES, Order
from ringreduce.schedules.registry import Custom, custom, hosts_of, registered
from ringreduce.schedules.steps import Schedule, ScheduleError


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the catalogue, or a registered one.

    Attributes:
        collective: The collective that it performs.
        name: Its name.
        rounds: The number of rounds, as a formula in n, the world. Empty for a registered algorithm.
        bytes: The bytes that the busiest rank sends, as a formula in n and in S, the size of the whole buffer. Empty
            for a registered algorithm.
        restrictions: The worlds or calls that it does not support. Empty if it supports any world. For a registered
            algorithm, why it is wrong for the given world.
        source: The paper or standard that it comes from. For a registered algorithm, the file and line.
        order: The order in which it combines the ranks' values to each element of a result, in every world.
            "at_once" is ((r0 + r1) + r2) + ..., rounded once. Reproducible communicators run only such algorithms.
            "kept" is rank order in some grouping, as operators need that do not commute. "any" is another order, or
            nothing is combined.
        measured_rounds: The number of rounds in the given world, or None if no world was given.
        measured_bytes: The bytes that the busiest rank sends in the given world, in units of S, or None.
    """

    collective: str
    name: str
    rounds: str
    bytes: str
    restrictions: str
    source: str
    order: Order
    measured_rounds: int | None = None
    measured_bytes: float | None = None

    @property
    def keeps_rank_order(self) -> bool:
        """Whether it combines the values of all ranks in rank order and rounds once."""
        return self.order == "at_once"


def algorithms(collective: str | None = None, world: int | None = None) -> list[Algorithm]:
    """Lists the algorithms of the catalogue and the registered ones.

    Args:
        collective: Lists only algorithms for this collective, for example ``"all_reduce"``.
        world: Also counts rounds and bytes for this number of ranks (with root 0 and default groups).

    Raises:
        ValueError: There is no such collective, or ``world`` is below 1.
    """
    rows = catalogue(collective, world)
    if not rows:
        raise ValueError(f"no collective is called {collective!r}")
    mine = [one for (kind, _), one in registered.items() if collective in (None, kind)]
    return [*rows, *(_row_of(one, world) for one in mine)]


def catalogue(collective: str | None, world: int | None) -> list[Algorithm]:
    """Lists the algorithms of the library."""
    rows = [row for row in _engine.catalogue() if collective in (None, row[0])]
    if world is None:
        return [Algorithm(*row) for row in rows]
    _number(world, "world")
    return [Algorithm(*row, *_engine.algorithm_cost(row[0], row[1], world)[:2]) for row in rows]


def _row_of(one: Custom, world: int | None) -> Algorithm:
    code = getattr(one.function, "__code__", None)
    source = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    if world is None:
        return Algorithm(one.collective, one.name, "", "", "", source, "any")
    try:
        one.heaviest_round(world)
        costs = [plan.cost() for plan in one.plans(world)]
        order = one.order(world)
    except ScheduleError as error:
        return Algorithm(one.collective, one.name, "", "", str(error), source, "any")
    counted = max(rounds for rounds, _, _ in costs), max(sent for _, sent, _ in costs)
    return Algorithm(one.collective, one.name, "", "", "", source, order, *counted)


def schedule(
    collective: str,
    algorithm: str,
    world: int,
    rank: int,
    root: int = 0,
    groups: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> Schedule:
    """Builds the schedule of one rank, with an algorithm of the catalogue or a registered one.

    Args:
        collective: The collective, for example ``"all_reduce"``.
        algorithm: The algorithm, for example ``"ring"``.
        world: The number of ranks.
        rank: The rank whose schedule to build.
        root: The root of broadcast, reduce, gather and scatter.
        groups: The group (host) of each rank, for two-level algorithms.
        order: All ranks, in the order in which rings and chains visit them. None means by rank, one group after the
            other.

    Raises:
        ValueError: There is no such collective, algorithm, rank or order.
        ScheduleError: A registered algorithm is wrong for this world.
    """
    values.text(collective, "collective")
    values.text(algorithm, "algorithm")
    for number, name in (world, "world"), (rank, "rank"), (root, "root"):
        _number(number, name)
    mine = custom(algorithm, collective)
    if mine is not None:
        return mine(world, rank, root, hosts_of(groups or []))
    return _engine.build(
        collective, algorithm, world, rank, root,
        [_number(group, "each of groups") for group in groups or []],
        [_number(each, "each of order") for each in order or []],
    )  # fmt: skip


def _number(value: int, name: str) -> int:
    """Checks that a value fits a 32-bit int. The engine checks its other limits."""
    return values.whole(value, name, -(2**31), 2**31 - 1)


def table() -> str:
    """Returns the catalogue as a Markdown table, with costs counted for 8 and for 12 ranks."""
    lines = [
        "| collective | name | rounds | bytes sent by the busiest rank | n = 8 | n = 12 | rank order | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry, twelve in zip(catalogue(None, 8), catalogue(None, 12), strict=True):
        counted = [f"{e.measured_rounds}; {e.measured_bytes:.4g} S" for e in (entry, twelve)]
        order = entry.order.replace("_", " ") if COLLECTIVES[entry.collective].reduces else ""
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
