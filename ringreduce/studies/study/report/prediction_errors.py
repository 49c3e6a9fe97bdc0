"""Compares the predictions of the model with the measurements."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ringreduce.studies.study.folder import CELL
from ringreduce.studies.study.report.figures import Figures

__all__ = ["NEAR_ENOUGH", "Errors", "Predictions", "predictions"]

NEAR_ENOUGH = 0.1
"""A predicted winner counts as right if it took at most this much longer than the fastest."""


@dataclass
class Errors:
    """The errors of an algorithm's predicted times, in per cent of the measured times.

    Attributes:
        collective: The collective. Empty for all algorithms together.
        algorithm: The algorithm. Empty for all algorithms together.
        cells: The number of predictions.
        median: The median of the absolute errors.
        nine_tenths: Their 90th percentile.
        worst: The largest absolute error.
        bias: The median of the signed errors. If it is above 0, predictions are too slow.
    """

    collective: str
    algorithm: str
    cells: int
    median: float
    nine_tenths: float
    worst: float
    bias: float


@dataclass
class Predictions:
    """The errors of all algorithms together and of each, and how often the predicted winner is a good choice."""

    all: Errors
    each: list[Errors]
    choices: int
    right: int


def _errors(collective: str, algorithm: str, errors: pd.Series) -> Errors:
    size = errors.abs()
    percent = [100 * float(part) for part in (size.median(), size.quantile(0.9), size.max(), errors.median())]
    return Errors(collective, algorithm, len(errors), *percent)


def predictions(found: Figures) -> Predictions | None:
    """Compares the medians of all launches with the predictions. Returns None if there are no predictions."""
    points = found.points
    known = points[(points["mode"] == "") & points["predicted_us"].notna()]
    if known.empty:
        return None
    errors = known["predicted_us"] / known["median_us"] - 1
    parts = known.groupby(["collective", "algorithm"]).groups
    each = [_errors(*entry, errors[parts[entry]]) for entry in found.entries() if entry in parts]
    cells = [cell for _, cell in known.groupby(list(CELL)) if len(cell) > 1]
    chosen = [float(cell.loc[cell["predicted_us"].idxmin(), "median_us"]) for cell in cells]
    right = sum(
        time <= (1 + NEAR_ENOUGH) * float(cell["median_us"].min())
        for time, cell in zip(chosen, cells, strict=True)
    )
    return Predictions(_errors("", "", errors), each, len(cells), right)
