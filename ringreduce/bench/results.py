"""What was found: figures merged over launches, bandwidths, and the machine that they are from."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ringreduce
from ringreduce import _engine
from ringreduce.bench.protocol import numpy_dtype

Row = dict[str, Any]

FAR_NS = 110.0
"""The geometric middle of the two modes between which machines were seen to change by themselves."""


@dataclass
class Results:
    """One run. Rows are in order of collective and size; algorithms first, then peers, the floor last."""

    facts: dict[str, Any]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def collectives(self) -> list[str]:
        return list(dict.fromkeys(row["collective"] for row in self.rows))

    def sizes(self, collective: str) -> list[int]:
        return sorted({row["bytes"] for row in self.rows if row["collective"] == collective})

    def names(self, kind: str, collective: str | None = None) -> list[str]:
        """Contestants of a kind ("ours", "peer", "floor") that have a figure, or failed."""
        rows = [row for row in self.rows if row["kind"] == kind and collective in (None, row["collective"])]
        return list(dict.fromkeys(row["library"] for row in rows))

    def row(self, collective: str, nbytes: int, name: str) -> Row | None:
        key = (collective, nbytes, name)
        found = (row for row in self.rows if (row["collective"], row["bytes"], row["library"]) == key)
        return next(found, None)

    def wrong(self) -> int:
        """Wrong elements in our results."""
        return sum(row["wrong"] or 0 for row in self.rows if row["kind"] == "ours" and "wrong" in row)


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth by nccl-tests' definition; S is the whole buffer."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (ranks - 1) / ranks


def merge(rows: Iterable[Row], ours: Iterable[str], checked: bool) -> list[Row]:
    """One row for each collective, size and contestant: the median over launches of their figures."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["collective"], row["bytes"], row["library"]), []).append(row)
    mine = list(ours)
    merged = [_merged(group, mine, checked) for group in groups.values()]
    floors = {(r["collective"], r["bytes"]): r["median_us"] for r in merged if r["kind"] == "floor"}
    order = {"ours": 0, "peer": 1, "floor": 2}
    collectives = list(dict.fromkeys(row["collective"] for row in merged))
    for row in merged:
        floor_us = floors.get((row["collective"], row["bytes"]))
        row["floor_us"] = floor_us
        row["floor_percent"] = None
        if floor_us is not None and row.get("median_us"):
            row["floor_percent"] = round(100 * floor_us / row["median_us"], 1)
    rank = {
        name: index for index, name in enumerate([*mine, *sorted({r["library"] for r in merged} - set(mine))])
    }
    return sorted(
        merged,
        key=lambda r: (collectives.index(r["collective"]), r["bytes"], order[r["kind"]], rank[r["library"]]),
    )


def _merged(group: list[Row], ours: list[str], checked: bool) -> Row:
    name = group[0]["library"]
    kind = "floor" if name == "floor" else "ours" if name in ours else "peer"
    row = {**group[0], "kind": kind, "launches": len(group)}
    row["count"] = row["bytes"] // numpy_dtype(row["dtype"]).itemsize
    if "problem" in row:
        return row
    for key in ("median_us", "p25_us", "p75_us"):
        row[key] = round(statistics.median(each[key] for each in group), 4)
    row["wrong"] = max(each["wrong"] for each in group) if checked else None
    seconds = max(row["median_us"], 1e-4) / 1e6
    row["algbw_gbs"] = round(row["bytes"] / seconds / 1e9, 4)
    row["busbw_gbs"] = round(row["algbw_gbs"] * bus_factor(row["collective"], row["ranks"]), 4)
    return row


def mode_of(before: float | None, after: float | None) -> str:
    """ "near" or "far", "near-far" where the machine changed in between, or "unknown"."""
    modes = ["unknown" if ns is None else "near" if ns < FAR_NS else "far" for ns in (before, after)]
    return modes[0] if modes[0] == modes[1] else "-".join(modes)


def machine_facts(ranks: int) -> dict[str, Any]:
    """What figures depend on besides the problem."""
    cores = _engine.usable_cores()
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ringreduce": ringreduce.__version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": _version("torch"),
        "mpi4py": _version("mpi4py"),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "cores": cores,
        "ranks": ranks,
        "oversubscribed": ranks > cores,
        "command": " ".join(["ringreduce", *sys.argv[1:]]),
        "environment": {key: value for key, value in os.environ.items() if key.startswith("RINGREDUCE_")},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
