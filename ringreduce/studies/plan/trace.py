"""Writes a predicted step as a trace for Perfetto."""

from __future__ import annotations

from pathlib import Path

from ringreduce import traces
from ringreduce.studies.plan.operations import COMPUTE
from ringreduce.studies.plan.prediction import Prediction

__all__ = ["trace"]

EXPOSED = "waits"


def trace(text: str, found: Prediction, path: Path) -> None:
    """Writes a step in Chrome's trace event format: a row for each stream, and one for the waits of the computation.

    Args:
        text: The strategy, for the reader.
        found: The prediction.
        path: The file. Its folder is created if necessary.

    Raises:
        OSError: The file cannot be written.
    """
    computed = sorted(
        (one for one in found.timeline if one.operation.stream.startswith(COMPUTE)), key=lambda one: one.began
    )
    streams = list(dict.fromkeys(one.operation.stream for one in [*computed, *found.timeline]))
    events = traces.label(f"a rank of {found.world}, {text}", 0)
    for row, stream in enumerate([*streams, EXPOSED]):
        events += traces.label(stream, 0, row, row)
    for one in found.timeline:
        operation = one.operation
        details = (
            {"collective": operation.collective, "bytes": operation.nbytes} if operation.collective else {}
        )
        name = f"{operation.collective or operation.kind} {operation.name}"
        row = streams.index(operation.stream)
        events.append(traces.span(name, one.began, one.ended, 0, row, cat=operation.kind, args=details))
    end = max(one.ended for one in found.timeline)
    free = 0.0
    for began, ended in [*((one.began, one.ended) for one in computed), (end, end)]:
        if began > free:
            events.append(traces.span("exposed communication", free, began, 0, len(streams)))
        free = max(free, ended)
    path.parent.mkdir(parents=True, exist_ok=True)
    traces.write(path, events)
