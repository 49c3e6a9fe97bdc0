"""Timelines: what every rank did when, in one file for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen

__all__ = ["Timeline"]

LANES = ("compute", "communication", "waits")  # from top to bottom
PING_PONGS = 20
TAG = 0x71ED  # for the messages that compare clocks


class Span(NamedTuple):
    """Something that a rank did. Times are in seconds on this rank's clock."""

    name: str
    began: float
    ended: float
    lane: str
    details: dict[str, Any]


class Timeline:
    """Records spans of time on every rank, and merges them into one trace with aligned clocks.

    All ranks must create the timeline and call :meth:`save`. Recording a span appends to a list and sends nothing. In
    the file, every rank is a process with three lanes: what the training thread computed, what the progress thread
    communicated, and when the training thread waited for communication.

    The clocks of several hosts differ and drift. Each rank's offset to rank 0 is measured when the timeline is created
    and again when it is saved, and interpolated in between. A measurement takes the fastest of several round trips
    (Cristian, "Probabilistic clock synchronization", 1989), and its error is at most half of that round trip.

    Args:
        comm: the group. None takes the communicator of all ranks.
        clock: a function that returns seconds as a float. Work.began, Work.ended and step timings are in
            time.monotonic()'s time.
    """

    def __init__(
        self, comm: Communicator | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        comm = chosen(comm)
        self._comm, self._clock = comm, clock
        self._spans: list[Span] = []
        self._start = clock_offset(comm, clock)

    @contextmanager
    def span(self, name: str, lane: str = "compute", **details: Any) -> Iterator[None]:
        """Records the time that the with-block takes. Blocks may be nested. The arguments are those of :meth:`add`."""
        began = self._clock()
        try:
            yield
        finally:
            self.add(name, began, self._clock(), lane, **details)

    def add(self, name: str, began: float, ended: float, lane: str = "compute", **details: Any) -> None:
        """Records a span whose times are known.

        Args:
            name: the name that the viewer shows.
            began: the start, in seconds on the timeline's clock.
            ended: the end, on the same clock.
            lane: "compute", "communication" or "waits".
            details: further values for the viewer to show; anything that JSON supports.

        Raises:
            ValueError: there is no such lane, or ended is before began.
        """
        if lane not in LANES:
            raise ValueError(f"lane must be one of {', '.join(LANES)}, not {lane!r}")
        if ended < began:
            raise ValueError(f"ended ({ended}) is before began ({began})")
        self._spans.append(Span(name, began, ended, lane, details))

    def step_timings(self, timings: Any) -> None:
        """Records the communication of each bucket, and each wait.

        Args:
            timings: the StepTimings of a DataParallel or ShardedOptimizer after a step.
        """
        for bucket in timings.buckets:
            queued_us = round((bucket.began - bucket.submitted) * 1e6, 3)
            self.add(
                f"bucket {bucket.index}", bucket.began, bucket.ended, "communication",
                bytes=bucket.nbytes, queued_us=queued_us,
            )  # fmt: skip
        for began, ended in timings.waits:
            self.add("wait", began, ended, "waits")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all ranks' spans so far to a file. Every rank must call it; only rank 0 writes.

        Args:
            path: the JSON file to write, in Chrome's trace event format. Ignored on all ranks but 0.
        """
        offsets = np.array([self._start, clock_offset(self._comm, self._clock)])
        own = [
            span._replace(began=_aligned(span.began, offsets), ended=_aligned(span.ended, offsets))
            for span in self._spans
        ]
        everybodys = self._comm.gather_object(own)
        if everybodys is not None:
            trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(everybodys)}
            Path(path).write_text(json.dumps(trace))


def clock_offset(comm: Communicator, clock: Callable[[], float]) -> tuple[float, float]:
    """Returns this rank's time now, and what to add to its clock to get rank 0's time. Collective."""
    message = np.zeros(1)
    if comm.rank == 0:
        for other in range(1, comm.size):
            for _ in range(PING_PONGS):
                comm.recv(message, other, tag=TAG)
                message[0] = clock()
                comm.send(message, other, tag=TAG)
        return clock(), 0.0
    tries = []
    for _ in range(PING_PONGS):
        asked = clock()
        comm.send(message, 0, tag=TAG)
        comm.recv(message, 0, tag=TAG)
        answered = clock()
        # Rank 0 most likely read its clock halfway.
        tries.append((answered - asked, message[0] - (asked + answered) / 2))
    round_trip, offset = min(tries)
    # An offset within the error may be zero, as it is between ranks of one host. Do not add noise to their spans.
    return clock(), float(offset) if abs(offset) > round_trip / 2 else 0.0


def _aligned(moment: float, offsets: np.ndarray[Any, Any]) -> float:
    """Converts a time to rank 0's clock. The offsets are (time, offset) at the timeline's start and now."""
    return moment + float(np.interp(moment, offsets[:, 0], offsets[:, 1]))


def trace_events(ranks: list[list[Span]]) -> list[dict[str, Any]]:
    """Returns the events in Chrome's trace event format. Times are in microseconds since the first span began."""
    origin = min((span.began for spans in ranks for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(ranks):
        events += _labels(rank)
        for span in spans:
            # Round both ends, not the length, so that a span inside another one stays inside.
            began, ended = (round((moment - origin) * 1e6, 3) for moment in (span.began, span.ended))
            events.append(
                {"ph": "X", "name": span.name, "cat": span.lane, "pid": rank, "tid": LANES.index(span.lane),
                 "ts": began, "dur": round(ended - began, 3), "args": span.details}
            )  # fmt: skip
    return events


def _labels(rank: int) -> list[dict[str, Any]]:
    """Returns the events that name a rank and its lanes for the viewer, and order them."""
    named = [("process", 0, f"rank {rank}", rank)]
    named += [("thread", lane, name, lane) for lane, name in enumerate(LANES)]
    return [
        {"ph": "M", "name": f"{what}_{key}", "pid": rank, "tid": lane, "args": {key: value}}
        for what, lane, name, order in named
        for key, value in (("name", name), ("sort_index", order))
    ]
