"""Timelines: what every rank did when, in one file for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ringreduce import traces
from ringreduce.communicator import Communicator
from ringreduce.communicator.clocks import Clock
from ringreduce.communicator.world import chosen

__all__ = ["Timeline"]

LANES = ("compute", "communication", "waits")  # from top to bottom


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

    The clocks of several hosts differ and drift. Each host's offset to rank 0 is measured when the timeline is created
    and whenever it is saved, and interpolated in between (:mod:`ringreduce.communicator.clocks`).

    Args:
        comm: the group. None takes the communicator of all ranks.
        clock: a function that returns seconds as a float. Work.began, Work.ended and step timings are in
            time.monotonic()'s time.
    """

    def __init__(
        self, comm: Communicator | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._comm, self._read = chosen(comm), clock
        self._spans: list[Span] = []
        self._clock = Clock(self._comm, clock, span=0)

    @contextmanager
    def span(self, name: str, lane: str = "compute", **details: Any) -> Iterator[None]:
        """Records the time that the with-block takes. Blocks may be nested. The arguments are those of :meth:`add`."""
        began = self._read()
        try:
            yield
        finally:
            self.add(name, began, self._read(), lane, **details)

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
        self._clock.synchronise()
        shared = self._clock.shared
        own = [span._replace(began=shared(span.began), ended=shared(span.ended)) for span in self._spans]
        everybodys = self._comm.gather_object(own)
        if everybodys is not None:
            traces.write(path, trace_events(everybodys))


def trace_events(ranks: list[list[Span]]) -> list[traces.Event]:
    """Returns a process for each rank, with a thread for each lane. The trace begins with the first span."""
    origin = min((span.began for spans in ranks for span in spans), default=0.0)
    events: list[traces.Event] = []
    for rank, spans in enumerate(ranks):
        events += traces.label(f"rank {rank}", rank, order=rank)
        for lane, name in enumerate(LANES):
            events += traces.label(name, rank, lane, order=lane)
        events += [
            traces.span(
                span.name, span.began - origin, span.ended - origin, rank, LANES.index(span.lane),
                cat=span.lane, args=span.details,
            )
            for span in spans
        ]  # fmt: skip
    return events
