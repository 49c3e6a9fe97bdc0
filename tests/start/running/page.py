"""The commands of docs/running.md, and where each of them is to be run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "running.md").read_text()
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ON_A_HOST = re.compile(r"^# on (\w+)\n", re.MULTILINE)
SAID = re.compile(r"rank \d+ of \d+: \S+ over \S+")


@dataclass(frozen=True)
class Block:
    """``where: outcome``, as the page has it behind the word sh."""

    where: str
    outcome: str
    text: str

    def by_host(self) -> dict[str, str]:
        """What to run on each host; on host0 if the block names none."""
        parts = ON_A_HOST.split(self.text)
        return dict(zip(parts[1::2], parts[2::2], strict=True)) if len(parts) > 1 else {"host0": self.text}

    def check(self, output: str) -> None:
        """That all ranks have said what they should, and nobody else."""
        ranks, transport = self.outcome.split(" ranks, ")
        size = int(ranks)
        total = size * (size - 1) // 2
        wanted = [f"rank {rank} of {size}: {total} over {transport}" for rank in range(size)]
        assert sorted(SAID.findall(output)) == wanted, output


SHELL = [Block(*info[3:].split(": "), text) for info, text in FENCED.findall(TEXT) if info.startswith("sh ")]
OTHERS = [info for info, _ in FENCED.findall(TEXT) if not info.startswith("sh ")]
FILES = {block.outcome: block.text for block in SHELL if block.where == "file"}
FILES["train.py"] = next(text for info, text in FENCED.findall(TEXT) if info == "python")


def write_files(folder: Path) -> Path:
    """The page's programs and scripts."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder
