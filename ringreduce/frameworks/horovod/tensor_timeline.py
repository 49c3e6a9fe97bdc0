"""Horovod's timeline: what happened to each tensor, in Chrome's trace event format."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from ringreduce import traces
from ringreduce.descriptors import above_standard
from ringreduce.frameworks.horovod.negotiation import Negotiator
from ringreduce.frameworks.horovod.request import Request

__all__ = ["TensorTimeline"]

CYCLES = 0  # the viewer's process that shows cycles


class TensorTimeline:
    """Writes events to a file as they happen, so that a job that is killed leaves its timeline.

    Every name is a process in the viewer, with a bar from its submission on this rank until all ranks had submitted it
    (NEGOTIATE_ALLREDUCE), and a bar for the operation (ALLREDUCE). Times are in microseconds since the start.

    Args:
        path: the file to write.
        mark_cycles: whether to mark the beginning of every cycle.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str, mark_cycles: bool) -> None:
        with above_standard():
            self._file = Path(path).open("w")  # noqa: SIM115
        self._file.write("[\n")
        self._start = time.monotonic()
        self._lock = threading.Lock()  # each process set has its own thread
        self._names: dict[str, int] = {}
        self._mark_cycles = mark_cycles
        self._write(*traces.label("cycles", CYCLES))

    def attach(self, negotiator: Negotiator) -> None:
        """Records the operations of a process set."""
        negotiator.on_run = self._ran
        negotiator.on_cycle = self._cycle if self._mark_cycles else None

    def _ran(self, kind: str, request: Request, agreed: float, ended: float) -> None:
        with self._lock:
            if request.name not in self._names:
                self._names[request.name] = 1 + len(self._names)
                self._write(*traces.label(request.name, self._names[request.name]))
            place, submitted = self._names[request.name], max(request.submitted - self._start, 0.0)
            agreed, ended = max(agreed - self._start, submitted), ended - self._start
            self._write(
                traces.span(f"NEGOTIATE_{kind.upper()}", submitted, agreed, place),
                traces.span(kind.upper(), agreed, max(agreed, ended), place),
            )

    def _cycle(self, moment: float) -> None:
        with self._lock:
            self._write(traces.instant("CYCLE_START", moment - self._start, CYCLES))

    def _write(self, *events: traces.Event) -> None:
        if not self._file.closed:
            self._file.writelines(json.dumps(event) + ",\n" for event in events)

    def close(self) -> None:
        """Completes the file."""
        with self._lock:
            end = traces.instant("end", time.monotonic() - self._start, CYCLES)
            self._file.write(json.dumps(end) + "\n]\n")
            self._file.close()
