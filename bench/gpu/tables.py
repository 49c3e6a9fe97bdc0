"""The results of a visit as text: facts, steps, what failed, hung or was not reached, and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DONE = ("passed", "left out", "skipped")
Line = dict[str, Any]


def read(file: Path) -> list[Line]:
    return parsed(file.read_text()) if file.exists() else []


def parsed(text: str) -> list[Line]:
    """Returns the lines that are whole."""
    found = []
    for one in text.splitlines():
        try:
            found.append(json.loads(one))
        except ValueError:
            continue
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = (str(cell).replace("|", "/").replace("\n", " ") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def named(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if kind in line and "outcome" in line]


def undone(lines: list[Line]) -> dict[str, list[str]]:
    """Returns the names of the steps and tests that have not passed, by what came of them."""
    found: dict[str, list[str]] = {}
    for kind in ("step", "test"):
        for line in named(lines, kind):
            if line["outcome"] not in DONE:
                found.setdefault(line["outcome"], []).append(line[kind])
    return found


def text(lines: list[Line]) -> str:
    made = []
    for line in lines:
        if "visit" in line:
            made += [f"# Visit {line['visit']}", ""]
            made += table(["", ""], [(key, value) for key, value in line.items() if key != "visit"])
    if facts := [(line["fact"], line["value"]) for line in lines if "fact" in line]:
        made += table(["fact", ""], facts)
    if built := [line for line in lines if "built" in line]:
        rows = [
            (line["built"], line["how"] if line["ok"] else "**failed**", line["seconds"]) for line in built
        ]
        made += table(["modules", "", "s"], rows)
    keys = ("step", "outcome", "seconds", "why")
    made += table(
        ["step", "", "s", ""], ([line.get(key, "") for key in keys] for line in named(lines, "step"))
    )
    for outcome, names in undone(lines).items():
        made += [f"{outcome.capitalize()}: {'; '.join(names)}", ""]
    bad = [line for line in named(lines, "test") if line["outcome"] not in DONE]
    if bad:
        made += table(
            ["test", "", "why"], [(line["test"], line["outcome"], line.get("why", "")) for line in bad]
        )
    kinds: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        if "figure" in line:
            columns = tuple(key for key in line if key not in ("seconds", "quartiles"))
            kinds.setdefault(columns, []).append(line)
    for columns, figures in kinds.items():
        made += table(columns, ([line[key] for key in columns] for line in figures))
    return "\n".join(made)
