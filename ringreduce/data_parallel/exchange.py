"""How a bucket's gradients are averaged."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.communicator.work import Work
from ringreduce.data_parallel.bucket import Bucket, Slot
from ringreduce.data_parallel.timings import BucketTiming, StepTimings

__all__ = ["AllReduce", "Exchange", "UnderWay"]


class UnderWay:
    """A bucket's exchange, begun.

    Args:
        works: collectives, in the order in which they begin.
        then: what is left to be done after them; it may add to works.
    """

    def __init__(self, works: list[Work], then: Callable[[], None] | None = None) -> None:
        self._works = works
        self._then = then

    def finish(self) -> None:
        """Waits; the averages are then where the exchange puts them. Doing it twice is fine."""
        for work in self._works:
            work.wait()
        then, self._then = self._then, None
        if then is not None:
            then()

    def times(self) -> tuple[float, float]:
        """When the work on it began and ended, in seconds of time.monotonic(); NaN where that is not known."""
        began, ended = self._works[0].began, self._works[-1].ended
        return math.nan if began is None else began, math.nan if ended is None else ended


class Meter:
    """Waits for exchanges, and notes when they were."""

    def __init__(self) -> None:
        self._timings = StepTimings()

    def wait(self, bucket: Bucket, submitted: float, under_way: UnderWay) -> None:
        """Waits for a bucket's exchange, handed over at this time."""
        self.wait_for(under_way.finish)
        timing = BucketTiming(bucket.index, bucket.nbytes, submitted, *under_way.times())
        self._timings.buckets.append(timing)

    def wait_for(self, wait: Callable[[], None]) -> None:
        begin = time.monotonic()
        wait()
        self._timings.waits.append((begin, time.monotonic()))

    def take(self) -> StepTimings:
        """What was noted since the last time."""
        taken, self._timings = self._timings, StepTimings()
        return taken


class Exchange(ABC):
    """A way to average.

    Attributes:
        over: the number of ranks whose gradients count; others bring zeros.
        meter: notes when buckets were exchanged.
        has_local_passes: whether it takes gradients of backward passes that are not synchronised;
        used_before, missed_before: in these: numbers of parameters with gradients, and names of those without.
    """

    has_local_passes = False

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.over = comm.size
        self.meter = Meter()
        self.used_before: set[int] = set()
        self.missed_before: list[str] = []

    def begin_forward(self, synchronise: bool, buckets: Sequence[Bucket]) -> None:
        """A forward pass begins whose backward pass is synchronised, or is not."""

    def end_local_pass(self, slots: Sequence[Slot], fill: Callable[[Slot], None]) -> None:
        """A backward pass that is not synchronised is over."""

    def end_pass(self) -> None:
        """A synchronised backward pass is over."""

    def forget(self) -> None:
        """The backward pass that is over has failed on some rank."""

    def give_memory(self, bucket: Bucket) -> None:
        """Called when a bucket without memory gets its first gradient."""
        bucket.use(bucket.allocate())

    @abstractmethod
    def start(self, bucket: Bucket) -> UnderWay:
        """Begins to average the bucket's buffer over the ranks; does not wait."""


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
