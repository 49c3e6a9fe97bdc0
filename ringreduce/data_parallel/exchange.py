"""How a bucket's gradients are averaged."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.bucket import Bucket
from ringreduce.work import Work

__all__ = ["AllReduce", "Exchange", "UnderWay", "span"]


class UnderWay(Protocol):
    """A bucket's exchange, begun."""

    def finish(self) -> None:
        """Waits; the bucket's buffer then holds the averages."""

    def times(self) -> tuple[float, float]:
        """When the work on it began and ended, in seconds of time.monotonic()."""


class Exchange(Protocol):
    """A way to average.

    Attributes:
        over: the number of ranks whose gradients count; others bring zeros.
    """

    over: int

    def start(self, bucket: Bucket) -> UnderWay:
        """Begins to average the bucket's buffer over the ranks; does not wait."""


class AllReduce:
    """One all-reduce for each bucket, in place."""

    NARROWED = {"bf16": {torch.float32}, "fp16": {torch.float32}}  # noqa: RUF012
    BY_BLOCKS = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __init__(self, comm: Communicator, wire: str | None) -> None:
        self._comm = comm
        self._wire = wire
        self.over = comm.size

    def start(self, bucket: Bucket) -> UnderWay:
        wire = self._wire
        if wire is not None and bucket.buffer.dtype not in self.NARROWED.get(wire, self.BY_BLOCKS):
            wire = None
        op = "avg" if self.over == self._comm.size else "sum"
        work = self._comm.all_reduce(bucket.buffer, op, wire=wire, async_op=True)
        return Reduction(work, bucket.buffer, 1 if op == "avg" else self.over)


class Reduction:
    def __init__(self, work: Work, buffer: Any, divisor: int) -> None:
        self._work = work
        self._buffer = buffer
        self._divisor = divisor

    def finish(self) -> None:
        self._work.wait()
        if self._divisor != 1:
            self._buffer.div_(self._divisor)

    def times(self) -> tuple[float, float]:
        return span(self._work, self._work)


def span(first: Work, last: Work) -> tuple[float, float]:
    """From when one call began to when another ended; NaN where that is not known."""
    began, ended = first.began, last.ended
    return math.nan if began is None else began, math.nan if ended is None else ended
