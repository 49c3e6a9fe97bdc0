"""Results: figures merged over launches, bandwidths, and facts about the machine.

A row is a figure of one contestant in the format of protocol.py, or the reason why there is none ("problem"). Rows of
a launch also have its number and the mode of the machine.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ringreduce.schedules.collectives import COLLECTIVES
from ringreduce.studies.bench.facts import UNKNOWN, machine_facts, mode_of
from ringreduce.studies.bench.problem import MESSAGES, UNEVEN, numpy_dtype

__all__ = [
    "Results",
    "Row",
    "bus_factor",
    "bus_formula",
    "machine_facts",
    "merge",
    "mode_of",
    "save",
    "table_mode",
]

Row = dict[str, Any]


@dataclass
class Results:
    """The results of a run. Rows are sorted by collective and size, with algorithms first and the floor last."""

    facts: dict[str, Any]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def collectives(self) -> list[str]:
        return list(dict.fromkeys(row["collective"] for row in self.rows))

    def sizes(self, collective: str) -> list[int]:
        return sorted({row["bytes"] for row in self.rows if row["collective"] == collective})

    def names(self, kind: str | None = None, collective: str | None = None) -> list[str]:
        """Returns the contestants of a kind ("ours", "peer", "floor"), including those that failed."""
        rows = (row for row in self.rows if kind in (None, row["kind"]))
        return list(dict.fromkeys(row["library"] for row in rows if collective in (None, row["collective"])))

    def row(self, collective: str, nbytes: int, name: str) -> Row | None:
        key = (collective, nbytes, name)
        found = (row for row in self.rows if (row["collective"], row["bytes"], row["library"]) == key)
        return next(found, None)

    def us(self, collective: str, nbytes: int, name: str) -> float | None:
        """Returns the median in microseconds, or None if there is none or the results were wrong."""
        row = self.row(collective, nbytes, name)
        return None if row is None or row.get("wrong") else row.get("median_us")

    def fastest(self, collective: str, nbytes: int, names: Iterable[str]) -> str | None:
        times = [(us, name) for name in names if (us := self.us(collective, nbytes, name)) is not None]
        return min(times)[1] if times else None

    def wrong(self) -> int:
        """Returns the number of wrong elements in the results of ringreduce."""
        return sum(row["wrong"] or 0 for row in self.rows if row["kind"] == "ours" and "wrong" in row)

    def measured(self) -> bool:
        return any("problem" not in row for row in self.rows if row["kind"] != "floor")


def bus_formula(operation: str) -> str:
    """Returns the formula of the bus bandwidth, in terms of the algorithm bandwidth and n, the number of ranks."""
    factor = "1" if operation in MESSAGES else COLLECTIVES[UNEVEN.get(operation, operation)].bus_formula
    return "algbw" if factor == "1" else f"algbw * {factor}"


def bus_factor(operation: str, ranks: int) -> float:
    """Returns the bus bandwidth divided by the algorithm bandwidth, as nccl-tests define them for the whole buffer.

    It is 1 for what is no collective, such as messages and training steps.
    """
    name, *_ = operation.split(",")  # "all_gather, separate": with arrays of its own
    facts = COLLECTIVES.get(UNEVEN.get(name, name))
    return facts.bus_factor(ranks) if facts else 1.0


def table_mode(rows: Iterable[Row]) -> str:
    """Returns the mode in which most figures were measured. Figures of other modes are not mixed with them."""
    modes = Counter(row.get("mode", UNKNOWN) for row in rows if "problem" not in row)
    return modes.most_common(1)[0][0] if modes else UNKNOWN


def merge(rows: Sequence[Row], ours: Iterable[str] = (), checked: bool = True) -> list[Row]:
    """Merges launches to one row for each collective, size and contestant: the median in the mode of the table.

    ``low_us`` and ``high_us`` are the lowest and the highest median of a launch. ``other_mode`` is True if no launch
    was in the mode of the table. Contestants whose rows have no kind are "ours" if they are in ``ours``, "floor" if
    they are called so, and otherwise "peer".
    """
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["collective"], row["bytes"], row["library"]), []).append(row)
    mine, mode = list(ours), table_mode(rows)
    merged = [_merged(group, mine, mode, checked) for group in groups.values()]
    floors = {(r["collective"], r["bytes"]): r.get("median_us") for r in merged if r["kind"] == "floor"}
    for row in merged:
        row["floor_us"] = floor_us = floors.get((row["collective"], row["bytes"]))
        row["floor_percent"] = None
        if floor_us is not None and row.get("median_us"):
            row["floor_percent"] = round(100 * floor_us / row["median_us"], 1)
    first = sorted(rows, key=lambda row: row.get("launch", 0))
    collectives = list(dict.fromkeys(row["collective"] for row in merged))
    names = list(dict.fromkeys([*mine, *(row["library"] for row in first)]))
    kinds = ["ours", "tuned", "peer", "floor"]
    return sorted(
        merged,
        key=lambda r: (
            collectives.index(r["collective"]),
            r["bytes"],
            kinds.index(r["kind"]),
            names.index(r["library"]),
        ),
    )


def _merged(group: list[Row], ours: list[str], mode: str, checked: bool) -> Row:
    figures = [row for row in group if "problem" not in row]
    same = [row for row in figures if row.get("mode", UNKNOWN) == mode] or figures
    row = {**(same or group)[0], "launches": len(same)}
    if "kind" not in row:
        name = row["library"]
        row["kind"] = "floor" if name == "floor" else "ours" if name in ours else "peer"
    row["count"] = row["bytes"] // numpy_dtype(row.get("dtype", "float32")).itemsize
    if not same:
        return row
    row["other_mode"] = row.get("mode", UNKNOWN) != mode
    medians = [each["median_us"] for each in same]
    row["low_us"], row["high_us"] = min(medians), max(medians)
    for key in ("median_us", "p25_us", "p75_us", "avg_us", "min_us", "max_us"):
        if key in row:
            row[key] = round(statistics.median(each[key] for each in same), 4)
    row["wrong"] = max(each["wrong"] for each in figures) if checked else None
    row["algbw_gbs"] = row["busbw_gbs"] = None
    if row["bytes"]:
        row["algbw_gbs"] = round(row["bytes"] / max(row["median_us"], 1e-4) / 1e3, 4)
        row["busbw_gbs"] = round(row["algbw_gbs"] * bus_factor(row["collective"], row["ranks"]), 4)
    return row


def as_dict(results: Results) -> dict[str, Any]:
    return {"facts": results.facts, "notes": results.notes, "rows": results.rows}


def save(folder: Path, name: str, tables: list[dict[str, Any]]) -> Path:
    """Writes a JSON file whose name contains the date, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{name}-{stamp}.json"
    path.write_text(json.dumps({"date": stamp, "tables": tables}, indent=1) + "\n")
    return path
