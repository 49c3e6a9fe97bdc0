"""Averaging the gradients of a bucket."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import torch

from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.communicator.work import Work
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.rows import Rows, averaged_rows, rows_of
from ringreduce.training.foundation.timings import BucketTiming, StepTimings

__all__ = ["WIRES", "AllReduce", "Exchange", "UnderWay"]

WIRES = (None, *get_args(Wire))


class UnderWay:
    """An exchange of a bucket that has begun.

    Args:
        works: the collectives, in the order in which they begin.
        then: a function to call after them; it may add to works.
    """

    def __init__(self, works: list[Work], then: Callable[[], None] | None = None) -> None:
        self._works = works
        self._then = then

    def finish(self) -> None:
        """Waits until the averages are where the exchange puts them. Calling it again does nothing."""
        for work in self._works:
            work.wait()
        then, self._then = self._then, None
        if then is not None:
            then()

    def times(self) -> tuple[float, float]:
        """Returns when its collectives began and ended, in seconds of time.monotonic(). NaN means unknown."""
        began, ended = self._works[0].began, self._works[-1].ended
        return math.nan if began is None else began, math.nan if ended is None else ended


class Meter:
    """Waits for exchanges, and records their times."""

    def __init__(self) -> None:
        self._timings = StepTimings()

    def wait(self, bucket: Bucket, submitted: float, under_way: UnderWay) -> None:
        """Waits for a bucket's exchange. submitted: when it was handed over."""
        self.wait_for(under_way.finish)
        timing = BucketTiming(bucket.index, bucket.nbytes, submitted, *under_way.times())
        self._timings.buckets.append(timing)

    def wait_for(self, wait: Callable[[], None]) -> None:
        begin = time.monotonic()
        wait()
        self._timings.waits.append((begin, time.monotonic()))

    def take(self) -> StepTimings:
        """Returns the times recorded since the last call."""
        taken, self._timings = self._timings, StepTimings()
        return taken


class Exchange(ABC):
    """A method to average gradients.

    Attributes:
        over: the number of ranks whose gradients count. The others contribute zeros.
        meter: records when buckets were exchanged.
        has_local_passes: whether it uses gradients of backward passes that are not synchronised.
        used_before, missed_before: the numbers of parameters with gradients in these passes, and the names of those
            without.
    """

    has_local_passes = False

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.over = comm.size
        self.meter = Meter()
        self.used_before: set[int] = set()
        self.missed_before: list[str] = []

    def begin_forward(self, synchronise: bool, buckets: Sequence[Bucket]) -> None:
        """Called at the start of a forward pass. synchronise: whether its backward pass is synchronised."""

    def end_local_pass(self, slots: Sequence[Slot], fill: Callable[[Slot], None]) -> None:
        """Called at the end of a backward pass that is not synchronised."""

    def end_pass(self) -> None:
        """Called at the end of a synchronised backward pass."""

    def forget(self) -> None:
        """Called if the last backward pass failed on some rank."""

    def give_memory(self, bucket: Bucket) -> None:
        """Called when a bucket without memory gets its first gradient."""
        bucket.use(bucket.allocate())

    def begin(self, bucket: Bucket) -> UnderWay:
        """Calls :meth:`start`, and lets error messages name the bucket."""
        self.comm._c.set_bucket(bucket.index)
        try:
            return self.start_rows(bucket) if bucket.sparse else self.start(bucket)
        finally:
            self.comm._c.set_bucket(-1)

    def start_rows(self, bucket: Bucket) -> UnderWay:
        """Begins to average a sparse gradient. Every rank gets all ranks' rows; the first exchange is of their numbers.

        A gradient that is dense on some rank, because the weight is also used otherwise, becomes dense on all.
        """
        comm, parameter = self.comm, bucket.slots[0].parameter
        own = rows_of(parameter)
        bucket.length = own[1].numel()
        here = parameter.grad is not None
        about = np.array([[len(own[0]), here, here and not parameter.grad.is_sparse]], np.int64)
        everybodys = np.empty((comm.size, 3), np.int64)
        works = [comm.all_gather(about, out=everybodys, async_op=True)]

        def add() -> None:
            counts, used, dense = everybodys.T.tolist()
            if not any(used):
                return
            found = [part.new_empty((sum(counts), *part.shape[1:])) for part in own]
            for part, out in zip(own, found, strict=True):
                works.append(comm.all_gather(part, out=out, counts=counts, async_op=True))
                works[-1].wait()
            rows = averaged_rows([*zip(*(one.split(counts) for one in found), strict=True)], self.over)
            _attach_rows(parameter, rows, any(dense))

        return UnderWay(works, add)

    @abstractmethod
    def start(self, bucket: Bucket) -> UnderWay:
        """Begins to average the bucket's buffer over the ranks. Does not wait."""


def _attach_rows(parameter: Any, rows: Rows, dense: bool) -> None:
    indices, values = rows
    average = torch.sparse_coo_tensor(
        indices[None], values, parameter.shape, is_coalesced=True, check_invariants=False
    ).to(parameter.device)
    parameter.grad = average.to_dense() if dense else average


class AllReduce(Exchange):
    """One all-reduce for each bucket, in place."""

    NARROWED = {"bf16": {torch.float32}, "fp16": {torch.float32}}  # noqa: RUF012
    BY_BLOCKS = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __init__(self, comm: Communicator, wire: Wire | None) -> None:
        super().__init__(comm)
        self._wire = wire

    def start(self, bucket: Bucket) -> UnderWay:
        buffer, over = bucket.buffer, self.over
        wire = self._wire
        if wire is not None and buffer.dtype not in self.NARROWED.get(wire, self.BY_BLOCKS):
            wire = None
        if over == self.comm.size:
            return UnderWay([self.comm.all_reduce(buffer, "avg", wire=wire, async_op=True)])
        work = self.comm.all_reduce(buffer, "sum", wire=wire, async_op=True)
        return UnderWay([work], lambda: buffer.div_(over))
