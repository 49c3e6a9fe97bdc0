"""Helpers for plots, which need matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["OURS", "PlotError", "pyplot", "two_axes"]

OURS = "#c2185b"  # the colour of ringreduce
STYLE = {
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "0.9", "grid.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


class PlotError(Exception):
    """matplotlib is missing, or there is no file to write to."""


def pyplot() -> Any:
    """Returns matplotlib.pyplot, with a backend that needs no display."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        text = "plotting needs matplotlib: pip install 'ringreduce[plot]'"
        raise PlotError(text) from error
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


@contextmanager
def two_axes(path: Path, title: str, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """Makes two axes side by side, and writes the picture to path at the end of the block."""
    plt = pyplot()
    if path.is_dir():  # matplotlib would write a hidden file there
        raise PlotError(f"a plot must be a file, not the folder {path}")
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(width, height), layout="constrained")
        yield left, right
        figure.suptitle(title, fontsize=12)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=140)
        plt.close(figure)
