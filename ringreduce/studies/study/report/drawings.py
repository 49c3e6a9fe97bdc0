"""Draws the schedules of a study's algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringreduce import schedules
from ringreduce.schedules import Schedule
from ringreduce.schedules.registry import is_in_a_file
from ringreduce.studies.study.report.drawing import draw

__all__ = ["Drawing", "drawings", "plans"]

# The first world that an algorithm supports is drawn; all are small enough to follow chunks.
WORLDS = (4, 3, 2, 6, 8)


@dataclass
class Drawing:
    """The drawing of an algorithm's schedule.

    Attributes:
        collective: The collective.
        algorithm: The algorithm's name in the results.
        svg: The picture, or "".
        missing: Why there is no picture.
    """

    collective: str
    algorithm: str
    svg: str = ""
    missing: str = ""


def plans(collective: str, name: str, world: int, hosts: int = 1) -> tuple[list[Schedule], list[int]]:
    """Returns the schedules of an algorithm, and the host of each rank (empty if hosts make no difference).

    Raises:
        ValueError: There is no such algorithm, or it does not support this number of ranks.
    """
    if is_in_a_file(name) and schedules.custom(name, collective) is None:
        schedules.load(name, collective)
    on_one, on_more = (
        [schedules.schedule(collective, name, world, rank, groups=groups) for rank in range(world)]
        for groups in ([0] * world, [rank * hosts // world for rank in range(world)])
    )
    return on_more, [] if on_one == on_more else [rank * hosts // world for rank in range(world)]


def drawings(entries: Sequence[tuple[str, str]], names: Mapping[str, str]) -> Iterator[Drawing]:
    """Draws the schedule of each entry.

    Args:
        entries: Pairs (collective, algorithm), with the algorithm's name in the results.
        names: The name of each algorithm whose name in the results is a label.
    """
    for collective, label in entries:
        yield _drawing(collective, label, names.get(label, label))


def _drawing(collective: str, label: str, name: str) -> Drawing:
    if name == "auto":
        return Drawing(collective, label, missing="auto chooses one of the others for each call")
    missing = ""
    for world in WORLDS:
        try:
            return Drawing(collective, label, draw(*plans(collective, name, world, hosts=2)))
        except ValueError as error:
            missing = missing or f"no drawing: {error}"
    return Drawing(collective, label, missing=missing)


def own_names(plan: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of a plan's algorithms by their labels."""
    return {each["label"]: each["name"] for each in plan.get("algorithms", ()) if each["label"]}
