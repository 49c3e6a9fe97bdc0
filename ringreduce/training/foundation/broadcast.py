"""Broadcasts of many tensors at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.communicator.arrays import arrays
from ringreduce.training.foundation.assignment import make_buckets
from ringreduce.training.foundation.bucket import Bucket, Slot

__all__ = ["Broadcast"]

AT_ONCE = 32 << 20  # bytes of a packed copy


class Broadcast:
    """Broadcasts many tensors, of any dtypes, in few calls. Keeps its memory for the next tensors of the same kinds."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._kinds: list[Any] = []
        self._buckets: list[Bucket] = []

    @torch.no_grad()
    def __call__(self, tensors: Sequence[Any], root: int) -> None:
        """Copies the root's values to every rank's tensors.

        Raises:
            ValueError: on every rank that has such a tensor, also on the root: several of its elements share memory.
        """
        kinds = [(tensor.dtype, tensor.shape, tensor.stride(), tensor.device) for tensor in tensors]
        if kinds != self._kinds:
            for number, tensor in enumerate(tensors):
                arrays.check_writable(tensor, f"tensor {number}")
            self._kinds = kinds
            slots = [Slot(number, "", tensor) for number, tensor in enumerate(tensors)]
            self._buckets = make_buckets([slot for slot in slots if slot.parameter.numel()], AT_ONCE, AT_ONCE)
            for bucket in self._buckets:
                bucket.use(bucket.allocate())
        for bucket in self._buckets:
            own = [tensors[slot.number] for slot in bucket.slots]
            copies = [slot.view for slot in bucket.slots]
            if self._comm.rank == root:
                torch._foreach_copy_(copies, own)
            self._comm.broadcast(bucket.buffer, root)
            if self._comm.rank != root:
                torch._foreach_copy_(own, copies)
