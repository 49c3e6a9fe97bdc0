"""Draws the map of a study. For each size and world, it shows who wins and by how much, or who ties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

import pandas as pd

from ringreduce.studies.study.report import svg
from ringreduce.text import human_bytes, human_us

__all__ = ["winners_map"]

LEFT, TOP, COLUMN, LINE = 66, 26, 196, 15
TIMES = "\N{MULTIPLICATION SIGN}"
# The most names of a tie (for larger ties, the number is shown), and letters of a name.
NAMES, LETTERS = 4, 20
MANY = "#9aa0a8"  # the colour of larger ties


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


def _first(cell: Any) -> list[str]:
    """Returns the algorithms in the tie that are not shown to be slower than the fastest."""
    return [name for name in cell.winners if name not in cell.behind]


def _lines(cell: Any, entries: int) -> tuple[list[str], list[str]]:
    """Returns the lines for the winners, and those for the algorithms behind them."""
    first, others = [_short(name) for name in _first(cell)], entries - len(cell.winners)
    if len(first) > NAMES:
        names = [f"tie of {len(first)}"]
    else:
        names = [f"tie: {first[0]}", *first[1:]] if len(first) > 1 else first
    smaller = [f"and {len(cell.behind)} in part"] if cell.behind else []
    if others:
        but = "all but " if others == 1 and len(first) > NAMES and not cell.behind else ""
        smaller.append(f"{but}{_short(cell.second)} {cell.ratio:.2f} {TIMES}")
    elif not smaller and len(first) > NAMES:
        smaller.append("all of them")
    return names, smaller


def _tip(cell: Any, times: pd.DataFrame) -> str:
    words = f"{human_bytes(cell.nbytes)}, {cell.world} ranks: "
    words += f"{', '.join(_first(cell))} tie" if len(cell.winners) > 1 else f"{cell.fastest} wins"
    if cell.behind:
        words += f", and in part {', '.join(cell.behind)}"
    if not math.isnan(cell.ratio):
        words += f"; {cell.second} takes {cell.ratio:.3g} times as long (p = {cell.p:.2g})"
    ordered = times.sort_values("median_us")
    medians = (f"{one.algorithm} {human_us(one.median_us)} µs" for one in ordered.itertuples())
    return words + "\n" + "\n".join(medians)


class _Map:
    def __init__(
        self, winners: pd.DataFrame, points: pd.DataFrame, colors: Mapping[str, str], title: str
    ) -> None:
        self.points, self.colors = points, colors
        self.worlds, self.sizes = sorted(winners["world"].unique()), sorted(winners["nbytes"].unique())
        # The names in a tie have the same order everywhere, because which of them is first means nothing.
        order = {name: number for number, name in enumerate(colors)}
        ties = [tuple(sorted(names, key=order.__getitem__)) for names in winners["winners"]]
        self.cells = {(one.nbytes, one.world): one for one in winners.assign(winners=ties).itertuples()}
        self.lines = {at: _lines(one, len(self.times(one))) for at, one in self.cells.items()}
        self.heights = {nbytes: 0 for nbytes in self.sizes}
        for (nbytes, _), (names, smaller) in self.lines.items():
            self.heights[nbytes] = max(self.heights[nbytes], len(names + smaller) * LINE + 9)
        width = LEFT + COLUMN * len(self.worlds) + 2
        self.root = svg.picture(width, TOP + sum(self.heights.values()) + 2, title)
        self.root.set("style", f"min-width: {0.85 * width:.0f}px")  # on narrower pages it scrolls

    def times(self, cell: Any) -> pd.DataFrame:
        """Returns the medians of all algorithms in a cell."""
        at = (self.points["nbytes"] == cell.nbytes) & (self.points["world"] == cell.world)
        return self.points[at]

    def background(self, group: Element, cell: Any, x: float, y: float, height: float) -> None:
        """Fills a cell with the colour of the winner, stronger for a larger lead, or with a strip for each in a tie."""
        svg.add(group, "rect", x=x, y=y, width=COLUMN - 3, height=height - 3, fill="white")
        lead = 1.0 if math.isnan(cell.ratio) else cell.ratio
        opacity = 0.3 if len(cell.winners) > 1 else 0.35 + 0.45 * min(1, math.log2(max(lead, 1)))
        first = _first(cell)
        shades = [self.colors[name] for name in first] if len(first) <= NAMES else [MANY]
        strip = (COLUMN - 3) / len(shades)
        for number, shade in enumerate(shades):
            svg.add(
                group, "rect", x=x + number * strip, y=y, width=strip, height=height - 3, fill=shade,
                fill_opacity=f"{opacity:.2f}", shape_rendering="crispEdges",
            )  # fmt: skip

    def cell(self, cell: Any, x: float, y: float) -> None:
        height = self.heights[cell.nbytes]
        group = svg.group(self.root, "cell", _tip(cell, self.times(cell)))
        self.background(group, cell, x, y, height)
        names, smaller = self.lines[cell.nbytes, cell.world]
        down = y + (height - 3 - len(names + smaller) * LINE) / 2 - 4
        look: dict[str, str | float] = {"text_anchor": "start", "fill": "#111"}
        for number, words in enumerate(names + smaller, 1):
            font: dict[str, str | float] = {"font_weight": 600} if number <= len(names) else {"font_size": 11}
            svg.text(group, x + 8, down + number * LINE, words, **font, **look)

    def everything(self) -> Element:
        for column, world in enumerate(self.worlds):
            middle = LEFT + COLUMN * (column + 0.5)
            svg.text(self.root, middle, 16, f"{world} ranks", font_weight="bold")
        y: float = TOP
        for nbytes in self.sizes:
            svg.text(
                self.root, LEFT - 8, y + self.heights[nbytes] / 2 + 3, human_bytes(nbytes), text_anchor="end"
            )
            for column, world in enumerate(self.worlds):
                if (nbytes, world) in self.cells:
                    self.cell(self.cells[nbytes, world], LEFT + COLUMN * column, y)
            y += self.heights[nbytes]
        return self.root


def winners_map(
    winners: pd.DataFrame,
    points: pd.DataFrame,
    colors: Mapping[str, str],
    title: str,
    standalone: bool = False,
) -> str:
    """Returns the map as SVG.

    Args:
        winners: Rows of `statistics.winners`, for cells that differ only in size and world.
        points: Rows of `statistics.summaries` for the same cells.
        colors: The colour of each algorithm.
        title: The title, which screen readers read.
        standalone: Whether the picture is for a file of its own. It then has a white background.
    """
    return svg.write(_Map(winners, points, colors, title).everything(), standalone)
