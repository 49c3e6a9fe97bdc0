"""ZeRO stage 1: DataParallel, and an optimizer that updates a share of the parameters (docs/training.md)."""

from __future__ import annotations

from typing import ClassVar

from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.data_parallel import DataParallel
from ringreduce.studies.plan.strategies.strategy import MB, Bucket, buckets_of
from ringreduce.training.foundation.filling import assign

__all__ = ["ZeRO1", "shares", "update_and_gather"]


class ZeRO1(DataParallel):
    """ringreduce.DataParallel with ringreduce.ShardedOptimizer, stage 1."""

    title: ClassVar[str] = "ZeRO 1"
    code: ClassVar[str] = "zero1"

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        averaged = self.average(job, world, steps)
        update_and_gather(job, world, steps, shares(job, self.bucket_mb), averaged, self.code)
        return steps

    def memory(self, job: Job, world: int) -> Memory:
        state = job.optimizer.state_bytes * job.elements / world
        return Memory(job.nbytes, job.nbytes, state, job.activation_bytes)


def shares(job: Job, bucket_mb: float) -> list[Bucket]:
    """Returns the buckets of a ShardedOptimizer, in the order in which their gradients come."""
    parameters = [parameter for _, parameter in job.arrivals()]
    nbytes, kinds, limit = (
        [one.nbytes for one in parameters],
        [one.dtype for one in parameters],
        bucket_mb * MB,
    )
    return buckets_of(job, assign(range(len(parameters)), nbytes, kinds, limit, limit))


def update_and_gather(
    job: Job, world: int, steps: Operations, buckets: list[Bucket], averaged: list[int], code: str
) -> None:
    """Adds the update of a rank's share, and the all-gathers of all parameters, which nothing hides.

    code: the strategy whose own code takes its time for each parameter.
    """
    seconds = job.update_s(1 / world, 1 / world) + job.tensors * job.overhead(code).update_s
    updated = steps.compute("optimizer", "optimizer", seconds, averaged)
    gathered = [
        steps.exchange(f"parameters {number}", "all_gather", bucket.nbytes, [updated])
        for number, bucket in enumerate(buckets)
    ]
    steps.compute("end", "other", 0.0, gathered)
