"""ZeRO stage 2: a reduce-scatter for each bucket of gradients, of which two are in flight (docs/training.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from pydantic import PositiveFloat

from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.strategy import Strategy, backward, forward, verdict
from ringreduce.studies.plan.strategies.zero1 import shares, update_and_gather

__all__ = ["ZeRO2"]

IN_FLIGHT = 2  # buckets of whole gradients, as in ringreduce.training.sharded_optimizer


class ZeRO2(Strategy):
    """ringreduce.ShardedOptimizer, stage 2. With accumulation, all but the last pass are within no_sync().

    Attributes:
        bucket_mb: As for :class:`ringreduce.ShardedOptimizer`, in MiB.
    """

    title: ClassVar[str] = "ZeRO 2"
    bucket_mb: PositiveFloat = 25.0

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        own = job.overhead("zero2")
        self.local_passes(job, steps, own.step_s)
        forward(job, steps)
        buckets = shares(job, self.bucket_mb)
        left, sent = list(enumerate(buckets)), list[int]()

        def scatter(layer: int, done: int) -> None:
            while left and left[0][1].last >= layer:
                number, bucket = left.pop(0)
                sent.append(steps.exchange(f"bucket {number}", "reduce_scatter", bucket.nbytes, [done]))

        def free(number: int) -> Callable[[], Sequence[int]]:
            return lambda: sent[number - IN_FLIGHT : number - IN_FLIGHT + 1]

        before = {bucket.first: free(number) for number, bucket in enumerate(buckets) if number >= IN_FLIGHT}
        backward(job, steps, 1, own.tensor_s, before, scatter)
        update_and_gather(job, world, steps, buckets, [*sent, verdict(steps, "communication")], "zero2")
        return steps

    def memory(self, job: Job, world: int) -> Memory:
        state = job.optimizer.state_bytes * job.elements / world
        whole = job.nbytes if self.accumulation > 1 else 0.0
        flying = IN_FLIGHT * max(bucket.nbytes for bucket in shares(job, self.bucket_mb))
        return Memory(job.nbytes, job.nbytes / world + whole, state, job.activation_bytes, flying)
