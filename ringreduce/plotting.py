"""What plots have in common. They need matplotlib."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["OURS", "PlotError", "pyplot"]

OURS = "#c2185b"  # the colour of what is ours


class PlotError(Exception):
    """There is nothing to plot with."""


def pyplot() -> Any:
    """matplotlib.pyplot, with a backend that needs no display."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        text = "plotting needs matplotlib: pip install 'ringreduce[plot]'"
        raise PlotError(text) from error
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")
