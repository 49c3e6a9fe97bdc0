"""What became of one test in one world, and the files in which that is kept."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

PASSED, FAILED, HUNG, SKIPPED = "passed", "failed", "hung", "skipped"
FOLDER = Path(__file__).parents[4] / "build" / "torch-suite"


@dataclasses.dataclass
class Outcome:
    """What became of a test. `ranks` holds, for each rank that did not end well, its error and its last output."""

    test: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    ranks: dict[str, str] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """All that is known, for a person."""
        parts = [f"{self.test}: {self.outcome} {self.reason}".rstrip()]
        parts += [f"--- rank {rank}\n{told}" for rank, told in sorted(self.ranks.items())]
        return "\n".join(parts)

    def first_error(self) -> str:
        """The last line of the first rank's exception: what a list shows."""
        if self.outcome != FAILED:
            return self.reason
        for _, told in sorted(self.ranks.items()):
            exception = f"\n{told}".partition("\n--- output")[0]
            lines = [line for line in exception.splitlines() if line.strip()]
            errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
            if errors or lines:
                return (errors or lines)[-1].strip()[:200]
        return self.reason


def path(backend: str, world: int, debug: str) -> Path:
    """Where the outcomes lie: one file for each thing that they depend on."""
    torch = version("torch")
    kind = f"{backend}-{debug.lower()}" if debug else backend
    return FOLDER / f"{kind}-torch{torch}-python{platform.python_version()}-world{world}.jsonl"


def write(file: Path, outcomes: list[Outcome]) -> None:
    """Keeps outcomes, a line of JSON each, in the order of their names."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dataclasses.asdict(outcome)) for outcome in sorted(outcomes, key=lambda o: o.test)]
    scratch = file.with_suffix(f".{os.getpid()}")
    scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    scratch.replace(file)


def read(file: Path) -> dict[str, Outcome]:
    """Outcomes by test; empty without the file."""
    if not file.exists():
        return {}
    found = [Outcome(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return {outcome.test: outcome for outcome in found}
