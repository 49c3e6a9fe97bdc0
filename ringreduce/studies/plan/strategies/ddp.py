"""torch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020)."""

from __future__ import annotations

from typing import ClassVar

from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.data_parallel import DataParallel
from ringreduce.studies.plan.strategies.strategy import MB, Bucket, buckets_of, replicated

__all__ = ["DDP"]


class DDP(DataParallel):
    """torch's DistributedDataParallel, over this library.

    Its later buckets all have one limit, so the last one may be large. Gradients are copied into buckets and back.

    Attributes:
        bucket_mb: ``bucket_cap_mb`` of torch, in MiB.
        first_bucket_mb: The size of the first bucket, which torch does not let a program choose.
        views: ``gradient_as_bucket_view`` of torch: whether gradients are views of their buckets.
    """

    title: ClassVar[str] = "DDP"
    code: ClassVar[str] = "ddp"
    agrees_on: ClassVar[str] = ""
    views: bool = False

    def buckets(self, job: Job) -> list[Bucket]:
        """Returns the buckets in the order in which they are sent. See compute_bucket_assignment_by_size of torch."""
        full: list[list[int]] = []
        open_buckets: dict[str, tuple[list[int], float]] = {}
        limits: dict[str, float] = {}
        for place, (_, parameter) in enumerate(job.arrivals()):
            limit = limits.get(parameter.dtype, self.first_bucket_mb * MB)
            places, nbytes = open_buckets.pop(parameter.dtype, ([], 0.0))
            places, nbytes = [*places, place], nbytes + parameter.nbytes
            if nbytes >= limit:
                full.append(places)
                limits[parameter.dtype] = self.bucket_mb * MB
            else:
                open_buckets[parameter.dtype] = places, nbytes
        full += [places for places, _ in open_buckets.values()]
        return buckets_of(job, sorted(full, key=lambda places: places[-1]))

    def average(self, job: Job, world: int, steps: Operations) -> list[int]:
        sent = super().average(job, world, steps)
        if not self.views:
            for number, bucket in zip(sent, self.buckets(job), strict=True):
                steps.compute("copy back", "backward", bucket.nbytes / job.copy_rate, [number])
        return sent

    def memory(self, job: Job, world: int) -> Memory:
        return replicated(job, 0.0 if self.views else job.nbytes)
