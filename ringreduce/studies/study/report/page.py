"""Writes the report: a single HTML file that works from disk, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from ringreduce.schedules.collectives import COLLECTIVES
from ringreduce.studies.study.folder import Study
from ringreduce.studies.study.inference import CONFIDENCE
from ringreduce.studies.study.report.drawings import drawings, own_names
from ringreduce.studies.study.report.figures import FACET, Figures, figures
from ringreduce.studies.study.report.files import save
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


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def write(study: Study, path: Path | str) -> None:
    """Writes the report of a study.

    Args:
        study: A study that `ringreduce.study.load` returned.
        path: The HTML file. Its folder is created if necessary.

    Raises:
        ValueError: Nothing has been measured yet, or the file cannot be written.
    """
    found = figures(study)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(_part("page.html.j2")).render(
        study=study,
        found=found,
        filters=found.choices,
        maps=list(_maps(found)),
        drawings=list(drawings(found.entries(), own_names(study.plan))),
        predictions=predictions(found),
        near_enough=f"{100 * NEAR_ENOUGH:g}",
        confidence=f"{100 * CONFIDENCE:g}",
        bus_factors={name: COLLECTIVES[name].bus_formula for name in found.choices["collective"]},
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        style=_part("page.css"),
        script=_part("page.js"),
        plotly=get_plotlyjs(),
        data=found.json().replace("<", "\\u003c"),
    )
    save(path, page)


def write_map(study: Study, path: Path | str) -> None:
    """Writes the first map of the report, which shows who wins where, as an SVG file.

    Args:
        study: A study that `ringreduce.study.load` returned.
        path: The file. Its folder is created if necessary.

    Raises:
        ValueError: Nothing has been measured yet, or the file cannot be written.
    """
    save(path, next(_maps(figures(study), standalone=True))["svg"])
