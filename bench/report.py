"""Prints what the harness merged: a table of times, and one of ratios for each reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness import ROOT, Cell, Question, Run, table_mode

Cells = dict[str, dict[int, Cell]]


def human_bytes(nbytes: int) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}iB"
    return f"{nbytes} B"


def human_us(us: float) -> str:
    if us < 0.1:
        return f"{us:.3f}"
    if us < 10:
        return f"{us:.2f}"
    return f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def spread(cell: Cell) -> float:
    """How far the launches (or, of a single one, its quartiles) lie apart, as a share of the median."""
    low, high = (cell.low_us, cell.high_us) if cell.launches > 1 else (cell.p25_us, cell.p75_us)
    if cell.median_us is None or low is None or high is None or cell.median_us == 0:
        return 0
    return (high - low) / cell.median_us


def time_text(cell: Cell) -> str:
    if cell.median_us is None:
        return cell.problem
    mark = "*" if cell.other_mode else ""
    return f"{human_us(cell.median_us)}{mark} ±{50 * spread(cell):.0f}%"


def reference_us(cells: Cells, names: Sequence[str], nbytes: int) -> tuple[str, float] | None:
    """The fastest of `names` at this size."""
    times = [(cells[name][nbytes].median_us, name) for name in names if name in cells]
    known = [(us, name) for us, name in times if us is not None]
    if not known:
        return None
    us, name = min(known)
    return name, us


def ratio_text(cell: Cell, reference: tuple[str, float] | None) -> str:
    if cell.median_us is None or reference is None:
        return "-"
    return f"{cell.median_us / reference[1]:.2f}"


def layout(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def time_table(cells: Cells, question: Question) -> str:
    rows = [["us", *cells]]
    for nbytes in question.sizes:
        rows.append([human_bytes(nbytes), *(time_text(row[nbytes]) for row in cells.values())])
    return layout(rows)


def ratio_table(cells: Cells, question: Question, title: str, names: Sequence[str]) -> str:
    columns = [name for name in cells if names != [name]]
    rows = [[f"x {title}", *columns, "reference"]]
    for nbytes in question.sizes:
        reference = reference_us(cells, names, nbytes)
        ratios = [ratio_text(cells[name][nbytes], reference) for name in columns]
        rows.append([human_bytes(nbytes), *ratios, reference[0] if reference else "-"])
    return layout(rows)


def mode_text(runs: Sequence[Run]) -> str:
    mode = table_mode(runs)
    known = [ns for run in runs for ns in run.probes_ns if ns is not None]
    launches: dict[int, set[str]] = {}
    for run in runs:
        if run.probes_ns:
            launches.setdefault(run.launch, set()).add(run.mode)
    each = "; ".join(f"launch {n + 1} {', '.join(sorted(modes))}" for n, modes in sorted(launches.items()))
    text = f"Core-to-core exchange: {mode} ({each})"
    if known:
        text += f", {min(known):.0f} to {max(known):.0f} ns one way"
    return f"{text}. A figure marked * was taken in another mode: do not compare it."


def report(question: Question, runs: Sequence[Run], cells: Cells, references: dict[str, list[str]]) -> str:
    """The text of one table; `references` maps a title to the contestants whose fastest is the measure."""
    shown = {
        name: row
        for name, row in cells.items()
        if any(cell.problem != "not installed" for cell in row.values())
    }
    absent = [name for name in cells if name not in shown]
    parts = [f"{question.collective}, float32 sum, in place, {question.ranks} ranks. {mode_text(runs)}"]
    if shown:
        parts.append(time_table(shown, question))
        for title, names in references.items():
            present = [name for name in names if name in shown]
            if present:
                parts.append(ratio_table(shown, question, title, present))
    if absent:
        parts.append(f"Not installed or not built: {', '.join(absent)}.")
    return "\n\n".join(parts)


def write_json(name: str, tables: list[dict[str, Any]]) -> Path:
    folder = ROOT / "bench" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{name}-{stamp}.json"
    path.write_text(json.dumps({"date": stamp, "tables": tables}, indent=1) + "\n")
    return path
