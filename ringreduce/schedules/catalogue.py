"""The catalogue, and the algorithms that are registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringreduce._engine import schedules as _engine
from ringreduce._engine import values
from ringreduce.schedules.model import Schedule, ScheduleError
from ringreduce.schedules.registry import Custom, custom, hosts_of, registered

SUMS = ("all_reduce", "reduce_scatter", "reduce")
"""The collectives that combine values."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of the catalogue.

    Attributes:
        collective: The collective that it performs.
        name: The name to ask for it by.
        rounds: Its number of rounds, as a formula in n, the world; empty for a registered one.
        bytes: The bytes that the busiest rank sends, as a formula in n and S, the size of the whole buffer.
        restrictions: What it does not take; empty if it takes any world. Of a registered one, why it is wrong for the
            world that was asked for.
        source: The paper or standard that it is from; of a registered one, the file and line.
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
    """Lists the catalogue and what is registered, or the part of it for one collective.

    Args:
        collective: Only algorithms for this collective.
        world: Also count rounds and bytes for this many ranks (root 0, default groups).

    Raises:
        ValueError: There is no such collective, or the world is below 1.
    """
    rows = catalogue(collective, world)
    if not rows:
        raise ValueError(f"no collective is called {collective!r}")
    mine = [one for (kind, _), one in registered.items() if collective in (None, kind)]
    return [*rows, *(_row_of(one, world) for one in mine)]


def catalogue(collective: str | None, world: int | None) -> list[Algorithm]:
    """The library's own."""
    rows = [row for row in _engine.catalogue() if collective in (None, row[0])]
    if world is None:
        return [Algorithm(*row) for row in rows]
    _number(world, "world")
    return [Algorithm(*row, *_engine.algorithm_cost(row[0], row[1], world)[:2]) for row in rows]


def _row_of(one: Custom, world: int | None) -> Algorithm:
    code = getattr(one.function, "__code__", None)
    source = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    if world is None:
        return Algorithm(one.collective, one.name, "", "", "", source, False)
    try:
        one.heaviest_round(world)
        costs = [plan.cost() for plan in one.plans(world)]
        kept = one.keeps_rank_order(world)
    except ScheduleError as error:
        return Algorithm(one.collective, one.name, "", "", str(error), source, False)
    counted = max(rounds for rounds, _, _ in costs), max(sent for _, sent, _ in costs)
    return Algorithm(one.collective, one.name, "", "", "", source, kept, *counted)


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
    mine = custom(algorithm, collective)
    if mine is not None:
        return mine(world, rank, root, hosts_of(groups or []))
    return _engine.build(
        collective, algorithm, world, rank, root,
        [_number(group, "each of groups") for group in groups or []],
        [_number(each, "each of order") for each in order or []],
    )  # fmt: skip


def _number(value: int, name: str) -> int:
    """An int of the engine's, which knows what else it must be."""
    return values.whole(value, name, -(2**31), 2**31 - 1)


def table() -> str:
    """The catalogue as a Markdown table, with costs counted for 8 and for 12 ranks."""
    lines = [
        "| collective | name | rounds | bytes sent by the busiest rank | n = 8 | n = 12 | rank order | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry, twelve in zip(catalogue(None, 8), catalogue(None, 12), strict=True):
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
