"""Lines of JSON in a file that several programs write: each line is there as soon as its result is known."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LEFT_OUT = 77  # the exit status of a step's program where something that it needs is not there


def results() -> Path | None:
    """Returns the file of the visit that runs this program, if one does."""
    place = os.environ.get("RINGREDUCE_VISIT_RESULTS")
    return Path(place) if place else None


def append(file: Path | None, **line: Any) -> None:
    if file:
        with file.open("ab", buffering=0) as out:  # a line is one write at the end of the file
            out.write(json.dumps(line).encode() + b"\n")
