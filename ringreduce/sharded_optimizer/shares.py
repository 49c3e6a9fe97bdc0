"""A bucket's parameters, in memory that collectives use in place, and this rank's share of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.bucket import Bucket, Slot, shaped_like
from ringreduce.data_parallel.exchange import UnderWay
from ringreduce.sharded_optimizer.placement import Placement

__all__ = ["ALIGNMENT", "Piece", "Share"]

ALIGNMENT = 64  # bytes: a cache line, and the longest vector registers


class Piece:
    """The part of a parameter that this rank owns.

    Attributes:
        group: the number of the parameter's group.
        first, last: the range of the parameter's elements, in memory order.
        parameter: these elements, as a parameter for the inner optimizer. It is one-dimensional if parameters are cut
            by elements; otherwise it has the whole parameter's shape.
    """

    def __init__(self, slot: Slot, group: int, first: int, last: int, memory: Any) -> None:
        self.slot, self.group, self.first, self.last = slot, group, first, last
        self.parameter = torch.nn.Parameter(memory, requires_grad=slot.parameter.requires_grad)

    def of(self, whole: Any) -> Any:
        """Returns this piece of a tensor with the parameter's shape: a view, if the strides are the same, too."""
        like = self.slot.parameter
        if self.parameter.shape == like.shape and self.last - self.first == like.numel():
            return whole
        if whole.stride() != like.stride():
            whole = torch.empty_like(like, dtype=whole.dtype, device=whole.device).copy_(whole)
        return whole.as_strided((whole.numel(),), (1,), whole.storage_offset())[self.first : self.last]


class Share:
    """The memory of a bucket's parameters, and this rank's part of it.

    The parameters become views of this memory, with rank 0's values. Every rank must create it.

    Args:
        groups: the number of each parameter's group.
        cuts: whether parts may begin and end within a parameter.

    Attributes:
        begin, end: this rank's part of the memory, in elements.
        counts: the number of elements in each rank's part. None if they are equal.
        gradient: the averaged gradient of this rank's part, valid if has_gradient. None before the first one.
    """

    def __init__(
        self, bucket: Bucket, groups: dict[Slot, int], placement: Placement, comm: Communicator, cuts: bool
    ) -> None:
        bucket.arrange(placement.starts, sum(placement.counts))
        self.bucket = bucket
        self.begin, self.end = placement.part(comm.rank)
        # Equal parts need no counts, and are faster without.
        self.counts = placement.counts if len(set(placement.counts)) > 1 else None
        self.gradient: Any = None
        self.has_gradient = False
        self.pieces: list[Piece] = []
        self._comm = comm
        self._memory = bucket.allocate()
        for slot in bucket.slots:
            self._move_in(slot, groups[slot], cuts)
        comm.broadcast(self._memory, 0)

    def _move_in(self, slot: Slot, group: int, cuts: bool) -> None:
        home = slot.of(self._memory)
        home.copy_(slot.parameter.detach())
        slot.parameter.data = from_dlpack(
            home
        )  # without this, saving it would save the whole bucket's memory
        begin, end = max(slot.start, self.begin), min(slot.start + slot.parameter.numel(), self.end)
        if begin < end:
            memory = self._memory[begin:end] if cuts else home
            self.pieces.append(Piece(slot, group, begin - slot.start, end - slot.start, memory))

    def holds(self, slot: Slot) -> bool:
        """Returns whether the parameter is still in this memory."""
        expected = self._memory.data_ptr() + slot.start * self._memory.element_size()
        return slot.parameter.numel() == 0 or bool(slot.parameter.data_ptr() == expected)

    def part(self, memory: Any) -> Any:
        """Returns this rank's part of memory that has the bucket's layout."""
        return memory[self.begin : self.end]

    def gradient_of(self, piece: Piece) -> Any:
        """Returns the averaged gradient of a piece."""
        begin = piece.slot.start + piece.first - self.begin
        flat = self.gradient[begin : begin + piece.last - piece.first]
        return flat if piece.parameter.dim() == 1 else shaped_like(piece.parameter, flat)

    def all_gather(self) -> UnderWay:
        """Sends this rank's part of the parameters to all ranks, and receives theirs."""
        own, whole = self.part(self._memory), self._memory
        return UnderWay([self._comm.all_gather(own, out=whole, counts=self.counts, async_op=True)])
