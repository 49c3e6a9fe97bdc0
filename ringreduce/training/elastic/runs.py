"""The names of checkpoints: of which run, and after which step. Several runs may write to one folder."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Run", "checkpoints_in"]

NAME = re.compile(r"step-(\d{8,})(?:-run-(\d{5,})-([0-9a-f]{8}))?")  # older versions named no run


class Run(NamedTuple):
    """A start of a training, or a change of its ranks. Checkpoints carry its name until the next run begins.

    Attributes:
        number: grows with every run that begins in a folder.
        mark: a random number, because two runs may begin at the same time.
    """

    number: int
    mark: str

    @staticmethod
    def begin(folder: Path, suffix: str = "") -> Run:
        """Returns a new run, after all that have written to the folder."""
        latest = max((run.number for run, _, _ in _found(folder, suffix)), default=0)
        return Run(latest + 1, secrets.token_hex(4))

    def __str__(self) -> str:
        return f"run-{self.number:05d}-{self.mark}"

    def name(self, step: int) -> str:
        """Returns the name of the checkpoint after a step."""
        return f"step-{step:08d}-{self}"


def checkpoints_in(folder: Path, suffix: str = "", since: int = 0) -> list[Path]:
    """Returns the checkpoints in a folder in the order in which they were written: by run, and then by step.

    Args:
        suffix: the end of their names.
        since: the number of the first run.
    """
    return [path for run, _, path in sorted(_found(folder, suffix)) if run.number >= since]


def _found(folder: Path, suffix: str) -> Iterator[tuple[Run, int, Path]]:
    for path in folder.glob(f"step-*{suffix}"):
        if named := NAME.fullmatch(path.name.removesuffix(suffix)):
            yield Run(int(named[2] or 0), named[3] or ""), int(named[1]), path
