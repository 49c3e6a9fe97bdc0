"""A study's folder. study.json holds the plan and the facts of the machine, rows.csv the measurements."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

__all__ = ["CELL", "COLUMNS", "FORMAT", "Study", "as_rows", "load", "save"]

FORMAT = 1

CELL = ("collective", "transport", "dtype", "wire", "world", "nbytes")
"""The columns that identify a cell. Algorithms compete within a cell."""

COLUMNS = {
    "launch": "int64",  # the number of the launch; each launch starts new ranks
    "block": "int64",  # the cell's position in the launch; its algorithms run one after the other
    "order": "int64",  # the figure's position in the launch
    "collective": "str",
    "algorithm": "str",  # the name that the plan uses
    "transport": "str",
    "dtype": "str",
    "wire": "str",  # the wire format, or empty
    "world": "int64",
    "nbytes": "int64",  # size of the whole buffer
    "time_us": "float64",  # median over the iterations, from the common start to the end of the last rank
    "q1_us": "float64",
    "q3_us": "float64",
    "min_us": "float64",
    "max_us": "float64",
    "iterations": "int64",  # iterations that the figures are computed from
    "warmup": "int64",  # warm-up iterations before them
    "late": "int64",  # iterations left out because a rank started too late
    "outliers_us": "str",  # further from the quartiles than 3 times their distance; still part of the figures
    "mode": "str",  # mode of the core-to-core exchange: near, far, or empty if unknown or changed
    "probe_us": "float64",  # one-way time from core to core, before the launch
    "started": "str",  # when the launch began: ISO 8601, UTC
    "predicted_us": "float64",  # prediction of the plan's model, or empty
}


@dataclass
class Study:
    """The contents of a study's folder.

    Attributes:
        plan: The plan, as a dict of its settings.
        facts: Facts about the machine, such as ``cpu`` and ``cores``.
        rows: A row for each launch and figure.
        folder: The folder.
        version: The version of ringreduce that measured.
        spent_s: The time that all launches took, in seconds.
        refused: What could not be measured. Each entry has the columns of a cell, the algorithm and the ``reason``.
    """

    plan: dict[str, Any]
    facts: dict[str, Any]
    rows: pd.DataFrame
    folder: Path
    version: str = ""
    spent_s: float = 0.0
    refused: list[dict[str, Any]] = field(default_factory=list)


def as_rows(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Converts rows to the table that :func:`load` returns, with its columns and dtypes."""
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def load(folder: Path | str) -> Study:
    """Loads a study from its folder.

    Raises:
        ValueError: The folder holds no study, or a study in another format. The message is one line and names the
            file.
    """
    folder = Path(folder)
    head = _head(folder / "study.json")
    rows = _rows(folder / "rows.csv")
    return Study(
        head["plan"], head["facts"], rows, folder, head["ringreduce"], float(head.get("spent_s", 0)),
        list(head.get("refused", ())),
    )  # fmt: skip


def _head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent} is not a study: {path.name} is missing") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    written = head.get("format") if isinstance(head, dict) else None
    if written is None:
        raise ValueError(f'{path} is not a study: "format" is missing')
    if written != FORMAT:
        raise ValueError(f"{path} was written in format {written}; this version reads format {FORMAT}")
    for key in ("ringreduce", "plan", "facts"):
        if key not in head:
            raise ValueError(f'{path}: "{key}" is missing')
    return dict(head)


def _rows(path: Path) -> pd.DataFrame:
    if not path.exists():  # the first launch has not finished
        return as_rows([])
    try:
        # An empty text column is an empty string, and an empty number is NaN. By default pandas makes both NaN.
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        missing = [name for name in COLUMNS if name not in rows]
        if missing:
            raise ValueError(f"column {missing[0]!r} is missing")
        for name, kind in COLUMNS.items():
            if kind == "float64":
                rows[name] = rows[name].replace("", "nan")
        return rows.astype(COLUMNS)
    except (OSError, ValueError) as error:  # pandas raises subclasses of ValueError
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error


def save(study: Study) -> None:
    """Writes the folder. Readers, and runs that continue after a crash, see only complete launches."""
    study.folder.mkdir(parents=True, exist_ok=True)
    head = {
        "format": FORMAT, "ringreduce": study.version, "plan": study.plan, "facts": study.facts,
        "spent_s": round(study.spent_s, 1), "refused": study.refused,
    }  # fmt: skip
    if len(study.rows):
        _replace(study.folder / "rows.csv", study.rows.to_csv(index=False, lineterminator="\n"))
    _replace(study.folder / "study.json", json.dumps(head, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
