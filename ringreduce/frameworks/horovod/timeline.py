"""Horovod's timeline: what happened to each tensor, in Chrome's trace event format."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from ringreduce.descriptors import above_standard
from ringreduce.frameworks.horovod.negotiation import Negotiator
from ringreduce.frameworks.horovod.request import Request

__all__ = ["Timeline"]

CYCLES = 0  # the viewer's process that shows cycles


class Timeline:
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
        self._name_process(CYCLES, "cycles")

    def attach(self, negotiator: Negotiator) -> None:
        """Records the operations of a process set."""
        negotiator.on_run = self._ran
        negotiator.on_cycle = self._cycle if self._mark_cycles else None

    def _ran(self, kind: str, request: Request, agreed: float, ended: float) -> None:
        with self._lock:
            if request.name not in self._names:
                self._names[request.name] = 1 + len(self._names)
                self._name_process(self._names[request.name], request.name)
            place = self._names[request.name]
            self._span(f"NEGOTIATE_{kind.upper()}", place, request.submitted, agreed)
            self._span(kind.upper(), place, agreed, ended)

    def _cycle(self, moment: float) -> None:
        with self._lock:
            self._write({"ph": "i", "name": "CYCLE_START", "pid": CYCLES, "ts": self._us(moment), "s": "g"})

    def _name_process(self, place: int, name: str) -> None:
        self._write({"ph": "M", "name": "process_name", "pid": place, "args": {"name": name}})

    def _span(self, name: str, place: int, began: float, ended: float) -> None:
        start = self._us(max(began, self._start))
        length = max(self._us(ended) - start, 0.0)
        self._write({"ph": "X", "name": name, "pid": place, "tid": 0, "ts": start, "dur": round(length, 3)})

    def _us(self, moment: float) -> float:
        return round((moment - self._start) * 1e6, 3)

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(json.dumps(event) + ",\n")

    def close(self) -> None:
        """Completes the file."""
        with self._lock:
            end = {"ph": "i", "name": "end", "pid": CYCLES, "ts": self._us(time.monotonic()), "s": "g"}
            self._file.write(json.dumps(end) + "\n]\n")
            self._file.close()
