"""Logical shards: the same bits whatever the number of ranks.

The order in which gradients are added shows in their last bits. So the global batch is cut into a fixed number of
shards; each has its own backward pass, on whichever rank, and the shards' gradients are added in the shards' order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.bucket import Bucket, Slot
from ringreduce.data_parallel.exchange import UnderWay, span
from ringreduce.data_parallel.memory import allocate
from ringreduce.data_parallel.reducer import Reducer
from ringreduce.errors import Error
from ringreduce.work import Work

__all__ = ["ShardReducer"]


class ShardReducer(Reducer):
    """A reducer whose buckets have a row for each of this rank's shards; the last row ends as their average."""

    def __init__(
        self,
        comm: Communicator,
        named: Sequence[tuple[str, Any]],
        first: float,
        limit: float,
        unused: bool,
        shards: int,
    ) -> None:
        self._shards = shards
        self._rows = shards // comm.size
        self._row = 0  # the shard of this rank whose backward pass is next
        self._used_before: set[int] = set()  # numbers, by shards before that one
        self._missed: list[str] = []  # names
        super().__init__(comm, named, first, limit, ShardExchange(comm, shards), unused)

    def _new_bucket(self, index: int, slots: Sequence[Slot], last: bool) -> Bucket:
        return Bucket(index, slots, last, self._rows, self.comm.size)

    def begin_forward(self, synchronise: bool) -> None:
        super().begin_forward(synchronise)
        if synchronise != (self._row == self._rows - 1):
            raise Error(
                f"logical_shards={self._shards} on {self.comm.size} ranks: {self._rows} forward and backward passes "
                f"a step, all but the last within no_sync(); this is number {self._row + 1}"
            )
        self._follows = True
        if self._row == 0:
            self._turn_to(0)

    def _turn_to(self, row: int) -> None:
        self._row = row
        for bucket in self.buckets:
            bucket.use_row(row)
        for slot in self.slots:
            slot.parameter.grad = None

    def _send(self) -> None:
        if self.synchronise:
            super()._send()

    def _end(self) -> None:
        if self.synchronise or not self._running:
            super()._end()
            return
        self._used_before.update(slot.number for slot in self.slots if slot.parameter.grad is not None)
        self._missed += [slot.name for slot in self._late()]
        for slot in self._late():
            slot.fill()
        self._reset()
        self._turn_to(self._row + 1)

    def settle(self) -> None:
        if self.synchronise:
            super().settle()
        else:
            self._reset()  # the shard's pass may be tried again

    def _finish(self, failure: str, shadowing: bool = False) -> None:
        try:
            super()._finish(failure, shadowing)
        finally:
            self._row = 0
            self._used_before.clear()
            self._missed.clear()

    def _used(self) -> list[bool]:
        return [slot.number in self._used_before or slot.parameter.grad is not None for slot in self.slots]

    def _missing_names(self) -> list[str]:
        return list(dict.fromkeys([*self._missed, *super()._missing_names()]))


class ShardExchange:
    """Each rank adds up, in the shards' order, a slice of all shards' gradients, and sends it to the others."""

    def __init__(self, comm: Communicator, shards: int) -> None:
        self._comm = comm
        self._shards = shards
        self.over = comm.size
        self._slices: WeakKeyDictionary[Bucket, Any] = (
            WeakKeyDictionary()
        )  # what comes, of this rank's slices

    def start(self, bucket: Bucket) -> UnderWay:
        if bucket not in self._slices:
            rows = bucket.rows
            self._slices[bucket] = allocate(rows.numel(), rows.dtype, rows.device).view_as(rows)
        received = self._slices[bucket]
        works = [
            self._comm.all_to_all(row, out=slices, async_op=True)
            for row, slices in zip(bucket.rows, received, strict=True)
        ]
        received = [slices.view(self._comm.size, -1) for slices in received]
        return ShardsUnderWay(self._comm, self._shards, bucket, works, received)


class ShardsUnderWay:
    def __init__(
        self, comm: Communicator, shards: int, bucket: Bucket, works: list[Work], received: list[Any]
    ) -> None:
        self._comm = comm
        self._shards = shards
        self._bucket = bucket
        self._works = works
        self._received = received

    def finish(self) -> None:
        for work in self._works:
            work.wait()
        wide = torch.promote_types(self._bucket.buffer.dtype, torch.float32)
        total = torch.zeros_like(self._received[0][0], dtype=wide)
        for rank in range(self._comm.size):
            for slices in self._received:
                total += slices[rank]
        row = self._bucket.rows[-1]
        own = row.view(self._comm.size, -1)[self._comm.rank]
        own.copy_(total.div_(self._shards))
        self._works.append(self._comm.all_gather(own, out=row, async_op=True))
        self._works[-1].wait()

    def times(self) -> tuple[float, float]:
        return span(self._works[0], self._works[-1])
