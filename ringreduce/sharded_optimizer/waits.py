"""Waiting for collectives, and noting when."""

from __future__ import annotations

import time

from ringreduce.data_parallel.timings import BucketTiming, StepTimings
from ringreduce.sharded_optimizer.bucket import Bucket
from ringreduce.work import Work

__all__ = ["Waits"]


class Waits:
    """What a step under way has communicated so far, and waited for."""

    def __init__(self) -> None:
        self._timings = StepTimings()

    def wait(self, index: int, bucket: Bucket, submitted: float, work: Work) -> None:
        """Waits for a collective of a bucket, handed over at this time."""
        begin = time.monotonic()
        work.wait()
        self._timings.waits.append((begin, time.monotonic()))
        if work.began is not None and work.ended is not None:
            timing = BucketTiming(index, bucket.memory.nbytes, submitted, work.began, work.ended)
            self._timings.buckets.append(timing)

    def take(self) -> StepTimings:
        """What was noted since the last time."""
        taken, self._timings = self._timings, StepTimings()
        return taken
