"""Writes the report of a study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringreduce.schedules.collectives import COLLECTIVES
from ringreduce.studies import pages
from ringreduce.studies.study.folder import Study
from ringreduce.studies.study.inference import CONFIDENCE
from ringreduce.studies.study.report.drawings import drawings, own_names
from ringreduce.studies.study.report.figures import FACET, Figures, figures
from ringreduce.studies.study.report.prediction_errors import NEAR_ENOUGH, predictions
from ringreduce.studies.study.report.winners_map import winners_map

__all__ = ["write", "write_map"]


def _maps(found: Figures, standalone: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the map of each combination of filters."""
    by = [name for name in FACET if name != "world"] + ["mode"]
    for choice, winners in found.maps.groupby(by, sort=False):
        mine = found.points.merge(winners[by].drop_duplicates(), on=by)
        title = f"who wins {choice[0]}, by size and world"
        yield {
            "choice": dict(zip(by, choice, strict=True)),
            "svg": winners_map(winners, mine, found.algorithms, title, standalone),
        }


def write(study: Study, path: Path | str) -> None:
    """Writes the report of a study.

    Args:
        study: A study that `ringreduce.study.load` returned.
        path: The HTML file. Its folder is created if necessary.

    Raises:
        ValueError: Nothing has been measured yet, or the file cannot be written.
    """
    found = figures(study)
    pages.write(
        path,
        __package__,
        found.json(),
        study=study,
        found=found,
        filters=found.choices,
        maps=list(_maps(found)),
        drawings=list(drawings(found.entries(), own_names(study.plan))),
        predictions=predictions(found),
        near_enough=f"{100 * NEAR_ENOUGH:g}",
        confidence=f"{100 * CONFIDENCE:g}",
        bus_factors={name: COLLECTIVES[name].bus_formula for name in found.choices["collective"]},
    )


def write_map(study: Study, path: Path | str) -> None:
    """Writes the first map of the report, which shows who wins where, as an SVG file.

    Args:
        study: A study that `ringreduce.study.load` returned.
        path: The file. Its folder is created if necessary.

    Raises:
        ValueError: Nothing has been measured yet, or the file cannot be written.
    """
    pages.save(path, next(_maps(figures(study), standalone=True))["svg"])
