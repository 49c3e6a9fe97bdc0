"""ringreduce's DataParallel: an all-reduce for each bucket, while the backward pass continues (docs/training.md)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.strategy import (
    MB,
    Bucket,
    Strategy,
    backward,
    buckets_of,
    forward,
    replicated,
    verdict,
)
from ringreduce.training.foundation.filling import assign

__all__ = ["DataParallel"]


class DataParallel(Strategy):
    """ringreduce.DataParallel.

    Attributes:
        bucket_mb, first_bucket_mb: As for :class:`ringreduce.DataParallel`, in MiB.
    """

    title: ClassVar[str] = "DataParallel"
    code: ClassVar[str] = "data_parallel"  # whose own time the job has
    agrees_on: ClassVar[str] = "communication"  # the stream of the ranks' verdicts
    bucket_mb: PositiveFloat = 25.0
    first_bucket_mb: PositiveFloat = 1.0

    def buckets(self, job: Job) -> list[Bucket]:
        """Returns the buckets in the order in which they are sent."""
        parameters = [parameter for _, parameter in job.arrivals()]
        nbytes, kinds = [one.nbytes for one in parameters], [one.dtype for one in parameters]
        order = range(len(parameters))
        return buckets_of(job, assign(order, nbytes, kinds, self.first_bucket_mb * MB, self.bucket_mb * MB))

    def average(self, job: Job, world: int, steps: Operations) -> list[int]:
        """Adds the passes of a step, and returns the numbers of the operations that end with all averages."""
        own = job.overhead(self.code)
        self.local_passes(job, steps, own.step_s)
        forward(job, steps)
        left = list(enumerate(self.buckets(job)))
        sent: list[int] = []

        def send(layer: int, done: int) -> None:
            while left and left[0][1].last >= layer:
                number, bucket = left.pop(0)
                sent.extend(self.send(job, world, steps, f"bucket {number}", bucket, done))

        backward(job, steps, 1, own.tensor_s, then=send)  # each gradient is copied into its bucket
        return [*sent, verdict(steps, self.agrees_on)] if self.agrees_on else sent

    def send(
        self, job: Job, world: int, steps: Operations, name: str, bucket: Bucket, ready: int
    ) -> list[int]:
        """Adds the exchange of a bucket, and returns the numbers of its last operations."""
        return [steps.exchange(name, "all_reduce", bucket.nbytes, [ready])]

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        averaged = self.average(job, world, steps)
        steps.compute("optimizer", "optimizer", job.update_s(), averaged)
        return steps

    def memory(self, job: Job, world: int) -> Memory:
        return replicated(job)
