"""The schedules of a study's algorithms, drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringreduce import schedules
from ringreduce.schedules import Schedule
from ringreduce.schedules.registry import is_in_a_file
from ringreduce.study.report.drawing import draw

__all__ = ["Drawing", "drawings", "plans"]

WORLDS = (4, 3, 2, 6, 8)  # the first one that an algorithm takes: few enough ranks to follow each chunk


@dataclass
class Drawing:
    """One algorithm's schedule.

    Attributes:
        collective, algorithm: Whose it is; the algorithm as results call it.
        svg: The picture, or nothing.
        missing: Why there is none.
    """

    collective: str
    algorithm: str
    svg: str = ""
    missing: str = ""


def plans(collective: str, name: str, world: int, hosts: int = 1) -> tuple[list[Schedule], list[int]]:
    """An algorithm's schedules, and the host of each rank; none, if hosts make no difference to it.

    Raises:
        ValueError: there is no such algorithm, or it does not take this many ranks.
    """
    if is_in_a_file(name) and schedules.custom(name, collective) is None:
        schedules.load(name, collective)
    on_one, on_more = (
        [schedules.schedule(collective, name, world, rank, groups=groups) for rank in range(world)]
        for groups in ([0] * world, [rank * hosts // world for rank in range(world)])
    )
    return on_more, [] if on_one == on_more else [rank * hosts // world for rank in range(world)]


def drawings(entries: Sequence[tuple[str, str]], names: Mapping[str, str]) -> Iterator[Drawing]:
    """Draws each (collective, algorithm).

    Args:
        entries: The algorithm as results call it.
        names: What the algorithm is by its own name, where results call it something else.
    """
    for collective, label in entries:
        yield _drawing(collective, label, names.get(label, label))


def _drawing(collective: str, label: str, name: str) -> Drawing:
    if name == "auto":
        return Drawing(collective, label, missing="auto picks one of the others for each call")
    missing = ""
    for world in WORLDS:
        try:
            return Drawing(collective, label, draw(*plans(collective, name, world, hosts=2)))
        except ValueError as error:
            missing = missing or f"no drawing: {error}"
    return Drawing(collective, label, missing=missing)


def own_names(plan: Mapping[str, Any]) -> dict[str, str]:
    """The algorithms of a plan by their labels."""
    return {each["label"]: each["name"] for each in plan.get("algorithms", ()) if each["label"]}
