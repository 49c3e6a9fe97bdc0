"""Writes a page: a single HTML file with its style, its script, its data and the plotting library."""

from __future__ import annotations

from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from ringreduce.studies.pages.files import save

__all__ = ["write"]


def _part(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def write(path: Path | str, package: str, data: str, **values: Any) -> None:
    """Writes a page.

    Args:
        path: The HTML file. Its folder is created if necessary.
        package: The package that holds the page's own ``page.html.j2``, ``page.css`` and ``page.js``.
        data: What the script shows, as JSON.
        values: The values of the template's variables.

    Raises:
        ValueError: The file cannot be written.
    """
    loader = jinja2.DictLoader(
        {
            "base.html.j2": _part(__package__, "base.html.j2"),
            "page.html.j2": _part(package, "page.html.j2"),
        }
    )
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("page.html.j2").render(
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        style=_part(__package__, "base.css") + _part(package, "page.css"),
        script=_part(__package__, "base.js") + _part(package, "page.js"),
        plotly=get_plotlyjs(),
        data=data.replace("<", "\\u003c"),
        **values,
    )
    save(path, page)
