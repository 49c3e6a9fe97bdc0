"""A study's folder: study.json says what was asked and where, rows.csv what was measured."""

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
"""The columns that name a cell. Algorithms compete within one."""

COLUMNS = {
    "launch": "int64",  # by number; ranks are started anew for each
    "block": "int64",  # a cell's place in its launch: its algorithms run one after the other
    "order": "int64",  # the figure's place in its launch
    "collective": "str",
    "algorithm": "str",  # as the plan names it
    "transport": "str",
    "dtype": "str",
    "wire": "str",  # the wire format; empty: none
    "world": "int64",
    "nbytes": "int64",  # of the whole buffer
    "time_us": "float64",  # median over iterations: from the common start to the last rank's end
    "q1_us": "float64",
    "q3_us": "float64",
    "min_us": "float64",
    "max_us": "float64",
    "iterations": "int64",  # that the figures are of
    "warmup": "int64",  # iterations before these
    "late": "int64",  # iterations left out, because a rank began too late
    "outliers_us": "str",  # beyond three times the quartiles' distance from them, but part of the figures
    "mode": "str",  # of the machine's core-to-core exchange: near, far; empty: unknown, or it changed
    "probe_us": "float64",  # one way from core to core, before the launch
    "started": "str",  # when the launch began: ISO 8601, UTC
    "predicted_us": "float64",  # by the plan's model; empty: none
}


@dataclass
class Study:
    """What a folder holds: the plan, the machine's facts, and a row for each launch and figure.

    Attributes:
        version: of ringreduce, that measured.
        spent_s: seconds that all launches took.
        refused: what could not be measured: a cell's columns, the algorithm, and the ``reason``.
    """

    plan: dict[str, Any]
    facts: dict[str, Any]
    rows: pd.DataFrame
    folder: Path
    version: str = ""
    spent_s: float = 0.0
    refused: list[dict[str, Any]] = field(default_factory=list)


def as_rows(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as :func:`load` returns them: these columns, of these types."""
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def load(folder: Path | str) -> Study:
    """A study's folder.

    Raises:
        ValueError: there is none, or another version wrote it. One line that names the place.
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
        raise ValueError(f"{path.parent}: no study: there is no {path.name}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    written = head.get("format") if isinstance(head, dict) else None
    if written is None:
        raise ValueError(f'{path}: no study: "format" is missing')
    if written != FORMAT:
        raise ValueError(f"{path} was written by format {written}; this version reads {FORMAT}")
    for key in ("ringreduce", "plan", "facts"):
        if key not in head:
            raise ValueError(f'{path}: "{key}" is missing')
    return dict(head)


def _rows(path: Path) -> pd.DataFrame:
    if not path.exists():  # the first launch has not ended
        return as_rows([])
    try:
        # Empty text is text, and an empty number is unknown: pandas by itself would call both unknown.
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        missing = [name for name in COLUMNS if name not in rows]
        if missing:
            raise ValueError(f"there is no column {missing[0]!r}")
        for name, kind in COLUMNS.items():
            if kind == "float64":
                rows[name] = rows[name].replace("", "nan")
        return rows.astype(COLUMNS)
    except (OSError, ValueError) as error:  # pandas' own are ValueErrors
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error


def save(study: Study) -> None:
    """Writes the folder. A reader, or whoever goes on after a crash, finds whole launches only."""
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
