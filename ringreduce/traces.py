"""Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A viewer shows a row for each thread, in a group for each process. Times are in seconds since the trace began.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Event", "instant", "label", "span", "write"]

Event = dict[str, Any]


def span(name: str, began: float, ended: float, process: int, thread: int = 0, **more: Any) -> Event:
    # Round both ends, not the length, so that a span inside another one stays inside.
    start, end = _us(began), _us(ended)
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": round(end - start, 3),
        **more,
    }


def instant(name: str, moment: float, process: int) -> Event:
    return {"ph": "i", "name": name, "pid": process, "ts": _us(moment), "s": "g"}


def label(name: str, process: int, thread: int | None = None, order: int | None = None) -> list[Event]:
    """Returns the events that name a process, or a thread of it, and say where the viewer puts it."""
    what = "process" if thread is None else "thread"
    arguments = {"name": name} if order is None else {"name": name, "sort_index": order}
    return [
        {"ph": "M", "name": f"{what}_{key}", "pid": process, "tid": thread or 0, "args": {key: value}}
        for key, value in arguments.items()
    ]


def write(path: str | os.PathLike[str], events: list[Event]) -> None:
    Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def _us(moment: float) -> float:
    return round(moment * 1e6, 3)
