"""What differs from what torch's wheel runs: expected.json, quoted in docs/torch.md.

`skipped`: tests that pass with Gloo and may not pass with ringreduce. `adapted`: tests in which the suite puts
something right before they run. Each entry has the name (`test`) and the reason; a skip may be for some `worlds`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("expected.json")
BEGIN, END = "<!-- torch suite: begin -->", "<!-- torch suite: end -->"


class Expected(NamedTuple):
    """One test that may not pass."""

    test: str
    reason: str
    worlds: tuple[int, ...] = ()

    def covers(self, test: str, world: int) -> bool:
        """Whether it is about this test in this world."""
        return self.test == test and (not self.worlds or world in self.worlds)


def _read(file: Path, kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))[kind]
    assert all(entry["reason"].strip() for entry in entries), f"{file}: an entry has no reason"
    return entries


def load(file: Path = FILE) -> list[Expected]:
    """The skips; refuses one without a reason."""
    entries = _read(file, "skipped")
    return [Expected(entry["test"], entry["reason"], tuple(entry.get("worlds", ()))) for entry in entries]


def adapted(file: Path = FILE) -> dict[str, str]:
    """The tests, or the beginnings of their names, that the suite puts something right for, and what."""
    return {entry["test"]: entry["reason"] for entry in _read(file, "adapted")}


def find(entries: list[Expected], test: str, world: int) -> Expected | None:
    """The entry about a test in a world."""
    return next((entry for entry in entries if entry.covers(test, world)), None)


def section(file: Path = FILE) -> str:
    """What docs/torch.md shows between the markers: `python -m tests.frameworks.torch.suite.expected` prints it."""
    entries = load(file)
    rows = ["| skipped | worlds | reason |", "|---|---|---|"]
    for entry in entries:
        rows.append(f"| `{entry.test}` | {', '.join(map(str, entry.worlds)) or 'all'} | {entry.reason} |")
    lines = rows if entries else ["No test that passes with Gloo is skipped."]
    lines += ["", "| adapted | how, and why |", "|---|---|"]
    lines += [f"| `{test}` | {reason} |" for test, reason in adapted(file).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(section())
