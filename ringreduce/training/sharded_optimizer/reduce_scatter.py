"""Stage 2: averages gradients bucket by bucket during the backward pass. Each rank keeps its share."""

from __future__ import annotations

from collections import deque
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.bucket import Bucket
from ringreduce.training.foundation.exchange import Exchange, UnderWay
from ringreduce.training.foundation.shares import Share

__all__ = ["ReduceScatter"]

IN_FLIGHT = 2  # buckets of whole gradients: one fills up while another is exchanged


class ReduceScatter(Exchange):
    """One reduce-scatter for each bucket. The averages of several backward passes add up in the shares.

    Whole gradients take the memory of a few buckets, which is passed from bucket to bucket.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._shares: dict[Bucket, Share] = {}
        self._free: list[Any] = []
        self._under_way: deque[UnderWay] = deque()

    def add(self, shares: list[Share]) -> None:
        self._shares |= {share.bucket: share for share in shares}

    def give_memory(self, bucket: Bucket) -> None:
        if not self._free and len(self._under_way) >= IN_FLIGHT:
            self.meter.wait_for(self._under_way[0].finish)
        bucket.use(self._borrow(bucket))

    def _borrow(self, bucket: Bucket) -> Any:
        kind = (bucket.like.dtype, bucket.like.device)
        for number, memory in enumerate(self._free):
            if (memory.dtype, memory.device) == kind and len(memory) >= bucket.length:
                return self._free.pop(number)
        return bucket.allocate(max(b.length for b in self._shares if (b.like.dtype, b.like.device) == kind))

    def start(self, bucket: Bucket) -> UnderWay:
        share, gradients, memory = self._shares[bucket], bucket.buffer, bucket.memory
        adds = share.has_gradient
        if share.gradient is None:
            share.gradient = bucket.allocate(share.end - share.begin)
        share.has_gradient = True
        out = share.part(gradients) if adds else share.gradient
        work = self.comm.reduce_scatter(gradients, "avg", out=out, counts=share.counts, async_op=True)
        bucket.use(None)

        def keep() -> None:
            if adds:
                share.gradient += out
            self._free.append(memory)
            self._under_way.popleft()

        self._under_way.append(UnderWay([work], keep))
        return self._under_way[-1]

    def forget(self) -> None:
        for share in self._shares.values():
            share.has_gradient = False
