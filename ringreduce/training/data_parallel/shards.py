"""Logical shards: gradients with the same bits for any number of ranks.

The order in which gradients are added affects their last bits. Therefore the global batch is divided into a fixed
number of shards. Each shard has its own backward pass, on any rank, and the gradients are added in the shards' order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.exchange import Exchange, UnderWay

__all__ = ["Shards"]


class Shards(Exchange):
    """Averages in the shards' order. Each rank adds up a part of all shards' gradients, and sends it to the others.

    A bucket has a row of memory for each of this rank's shards. The last row receives the average.
    """

    has_local_passes = True

    def __init__(self, comm: Communicator, shards: int) -> None:
        super().__init__(comm)
        self._shards = shards
        self._rows = shards // comm.size
        self._row = 0  # the row of the shard whose backward pass is next
        # For each bucket [2, rows, elements]: this rank's gradients, and all ranks' gradients of this rank's part.
        self._memory: WeakKeyDictionary[Bucket, Any] = WeakKeyDictionary()

    def give_memory(self, bucket: Bucket) -> None:
        if bucket not in self._memory:
            length = -(-bucket.length // self.comm.size) * self.comm.size
            self._memory[bucket] = bucket.allocate(2 * self._rows * length).view(2, self._rows, length)
            self._memory[bucket][0, :, bucket.length :].zero_()
        bucket.use(self._memory[bucket][0, self._row])

    def begin_forward(self, synchronise: bool, buckets: Sequence[Bucket]) -> None:
        if synchronise != (self._row == self._rows - 1):
            raise Error(
                f"logical_shards={self._shards} on {self.comm.size} ranks needs {self._rows} forward and backward "
                f"passes a step, all but the last within no_sync(); this is number {self._row + 1}"
            )
        for bucket in buckets:
            self.give_memory(bucket)
            for slot in bucket.slots:
                slot.parameter.grad = None  # of the previous step, or of a failed backward pass

    def end_local_pass(self, slots: Sequence[Slot], fill: Callable[[Slot], None]) -> None:
        if all(slot.parameter.grad is None for slot in slots):
            return  # torch.autograd.grad() of other tensors
        for slot in slots:
            if slot.parameter.grad is None:
                self.missed_before.append(slot.name)
            else:
                self.used_before.add(slot.number)
            fill(slot)
            slot.parameter.grad = None
        self._row += 1

    def end_pass(self) -> None:
        self._row = 0
        self.used_before.clear()
        self.missed_before.clear()

    def start(self, bucket: Bucket) -> UnderWay:
        sent, received = self._memory[bucket]
        works = [
            self.comm.all_to_all(row, out=slices, async_op=True)
            for row, slices in zip(sent, received, strict=True)
        ]

        def add() -> None:
            slices = received.view(self._rows, self.comm.size, -1)
            wide = torch.promote_types(received.dtype, torch.float32)
            total = torch.zeros_like(slices[0, 0], dtype=wide)
            for rank in range(self.comm.size):
                for row in slices:
                    total += row[rank]
            average = sent[-1]
            own = average.view(self.comm.size, -1)[self.comm.rank]
            own.copy_(total.div_(self._shards))
            works.append(self.comm.all_gather(own, out=average, async_op=True))
            works[-1].wait()

        return UnderWay(works, add)
