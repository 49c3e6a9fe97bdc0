"""The colours and symbols by which pages and pictures tell things apart."""

from __future__ import annotations

__all__ = ["color", "symbol"]

COLORS = (
    "#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#9c6b4e", "#ff8ab7", "#7a1f5c",
    "#97bbf5", "#0e8a9a", "#b8b500", "#c2416f", "#5b7a3a", "#d69fe8",
)  # fmt: skip
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "cross", "hexagram",
)  # fmt: skip


def color(number: int) -> str:
    """Returns the colour of the algorithm, chunk or strategy with this number."""
    return COLORS[number % len(COLORS)]


def symbol(number: int) -> str:
    """Returns Plotly's name of the symbol of the algorithm or strategy with this number."""
    return SYMBOLS[number % len(SYMBOLS)]
