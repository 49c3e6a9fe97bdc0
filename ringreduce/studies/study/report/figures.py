"""The figures of a study in the form that the report's page needs: compact, and valid JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from ringreduce.schedules import algorithms as catalogue
from ringreduce.studies.pages.looks import color, symbol
from ringreduce.studies.study.folder import CELL, Study
from ringreduce.studies.study.inference import DIFFERENCE, summaries, winners

__all__ = ["FACET", "Figures", "figures"]

FACET = [name for name in CELL if name != "nbytes"]
"""The columns that the page's filters choose from. Sizes are on the axis."""

LAUNCH = ("launch", "time_us", "q1_us", "q3_us", "min_us", "max_us", "iterations", "warmup", "outliers_us")


@dataclass
class Figures:
    """The data that the page shows.

    Attributes:
        algorithms: The colour of each algorithm by name, in the order of the plan.
        choices: The values that each filter offers.
        modes: The machine modes that can be shown separately. The first is "", which means all launches.
        points: A row for each cell, algorithm and mode, with the columns of `summaries`, ``predicted_us`` and
            ``place``. ``place`` is "wins", "ties", "ties in part" (with some, but not with the fastest) or "".
        maps: A row for each cell and mode, with the columns of `winners`.
        launches: A row for each cell, algorithm and launch.
        difference: The smallest difference of interest. Algorithms that differ by less tie.
    """

    algorithms: dict[str, str]
    choices: dict[str, list[Any]]
    modes: list[str]
    points: pd.DataFrame
    maps: pd.DataFrame
    launches: pd.DataFrame
    difference: float

    def entries(self) -> list[tuple[str, str]]:
        """Returns each pair of a collective and one of its algorithms."""
        there = set(zip(self.launches["collective"], self.launches["algorithm"], strict=True))
        return [each for each in product(self.choices["collective"], self.algorithms) if each in there]

    def json(self) -> str:
        """Returns everything that the page's script needs, as JSON."""
        facets = self.launches[FACET].drop_duplicates().reset_index(drop=True)
        names = list(self.algorithms)

        def columns(table: pd.DataFrame, kept: Sequence[str]) -> dict[str, list[Any]]:
            by_facet = table.merge(facets.reset_index(names="facet"), on=FACET)
            by_facet["algorithm"] = by_facet["algorithm"].map(names.index)
            return {name: _plain(by_facet[name]) for name in ("facet", "algorithm", "nbytes", "mode", *kept)}

        kept = ("launches", "median_us", "low_us", "high_us", "busbw", "algbw", "predicted_us", "place")
        everything = {
            "facets": facets.astype(str).to_numpy().tolist(),
            "algorithms": [
                {"name": name, "color": shade, "symbol": symbol(number)}
                for number, (name, shade) in enumerate(self.algorithms.items())
            ],
            "points": columns(self.points, kept),
            "launches": columns(self.launches, LAUNCH),
        }
        return json.dumps(everything, separators=(",", ":"), allow_nan=False)


def _plain(column: pd.Series) -> list[Any]:
    if not pd.api.types.is_float_dtype(column):
        return list(column.tolist())
    return [None if value != value else float(f"{value:.5g}") for value in column]


def figures(study: Study) -> Figures:
    """Returns the figures of a study.

    Raises:
        ValueError: Nothing has been measured yet.
    """
    rows = study.rows
    if rows.empty:
        raise ValueError(f"{study.folder}: there is nothing to report, because nothing has been measured yet")
    difference = float(study.plan.get("difference", DIFFERENCE))
    known = sorted((mode for mode in rows["mode"].unique() if mode), reverse=True)  # near, far
    modes = ["", *known] if rows["mode"].nunique() > 1 else [""]
    points, maps = [], []
    for mode in modes:
        chosen = rows[rows["mode"] == mode] if mode else rows
        points.append(summaries(chosen).assign(mode=mode))
        maps.append(winners(chosen, difference).assign(mode=mode))
    all_maps = pd.concat(maps, ignore_index=True)
    all_points = _with_predictions(_with_places(pd.concat(points, ignore_index=True), all_maps), rows)
    algorithms = {name: color(number) for number, name in enumerate(_algorithms(study))}
    choices = {name: _ordered(rows[name].unique().tolist(), study.plan.get(name + "s", ())) for name in FACET}
    return Figures(algorithms, choices, modes, all_points, all_maps, rows, difference)


def _ordered(names: list[Any], known: Sequence[Any]) -> list[Any]:
    """Sorts names: the known ones in the order of ``known``, and then the others in alphabetical order."""
    return [*(name for name in dict.fromkeys(known) if name in names), *sorted(set(names).difference(known))]


def _algorithms(study: Study) -> list[str]:
    planned = [each["label"] or each["name"] for each in study.plan.get("algorithms", ())]
    return _ordered(
        list(study.rows["algorithm"].unique()), [*planned, "auto", *(one.name for one in catalogue())]
    )


def _with_places(points: pd.DataFrame, maps: pd.DataFrame) -> pd.DataFrame:
    table = points.merge(maps[[*CELL, "mode", "winners", "behind"]], on=[*CELL, "mode"], how="left")

    def place(name: str, tie: tuple[str, ...], behind: tuple[str, ...]) -> str:
        if name not in tie:
            return ""
        return "ties in part" if name in behind else "ties" if len(tie) > 1 else "wins"

    table["place"] = [place(*each) for each in zip(table.algorithm, table.winners, table.behind, strict=True)]
    return table.drop(columns=["winners", "behind"])


def _with_predictions(points: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    predicted = rows.groupby([*CELL, "algorithm"], as_index=False)["predicted_us"].median()
    return points.merge(predicted, on=[*CELL, "algorithm"], how="left")
