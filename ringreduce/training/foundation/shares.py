"""A bucket's parameters, in memory that collectives use in place, and this rank's share of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.exchange import UnderWay
from ringreduce.training.foundation.kinds import Cut
from ringreduce.training.foundation.placement import Placement, by_elements, by_parameters

__all__ = ["ALIGNMENT", "Piece", "Share", "arrange", "ranges"]

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


def ranges(bucket: Bucket, placement: Placement, rank: int) -> Iterator[tuple[Slot, int, int]]:
    """Yields the parameters of which a rank owns elements, and the range of these, in memory order."""
    part_begin, part_end = placement.part(rank)
    for slot in bucket.slots:
        begin, end = max(slot.start, part_begin), min(slot.start + slot.parameter.numel(), part_end)
        if begin < end:
            yield slot, begin - slot.start, end - slot.start


def arrange(bucket: Bucket, cut: Cut, owners: Sequence[int], world: int) -> Placement:
    """Places the parameters of a bucket, and divides its memory among ranks or servers.

    Args:
        cut: whether parts may begin and end within a parameter.
        owners: who has each parameter, if they may not.
    """
    sizes = [slot.parameter.numel() for slot in bucket.slots]
    alignment = max(ALIGNMENT // bucket.like.element_size(), 1)
    if cut == "elements":
        placement = by_elements(sizes, world, alignment)
    else:
        placement = by_parameters(sizes, owners, world, alignment)
    bucket.arrange(placement.starts, sum(placement.counts))
    return placement


class Share:
    """The memory of a bucket's parameters, and this rank's part of it.

    It begins with a copy of the parameters, which become views of the memory in :meth:`adopt`.

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
        self.bucket, self.placement = bucket, placement
        self.begin, self.end = placement.part(comm.rank)
        # Equal parts need no counts, and are faster without.
        self.counts = placement.counts if len(set(placement.counts)) > 1 else None
        self.gradient: Any = None
        self.has_gradient = False
        self._comm, self._groups, self._cuts = comm, groups, cuts
        self._memory = bucket.allocate()
        for slot in bucket.slots:
            slot.of(self._memory).copy_(slot.parameter.detach())

    def adopt(self) -> None:
        """Makes the parameters views of this memory."""
        for slot in self.bucket.slots:
            # Without DLPack, saving a parameter would save the whole bucket's memory.
            slot.parameter.data = from_dlpack(slot.of(self._memory))

    def broadcast(self) -> None:
        """Gives all ranks rank 0's parameters. Every rank must call it."""
        self._comm.broadcast(self._memory, 0)

    def pieces_of(self, rank: int) -> list[Piece]:
        """Returns the pieces of parameters that a rank owns."""
        found = []
        for slot, first, last in ranges(self.bucket, self.placement, rank):
            flat = self._memory[slot.start + first : slot.start + last]
            memory = flat if self._cuts else slot.of(self._memory)
            found.append(Piece(slot, self._groups[slot], first, last, memory))
        return found

    def holds(self, slot: Slot) -> bool:
        """Returns whether the parameter is still in this memory."""
        expected = self._memory.data_ptr() + slot.start * self._memory.element_size()
        return slot.parameter.numel() == 0 or bool(slot.parameter.data_ptr() == expected)

    def part(self, memory: Any) -> Any:
        """Returns this rank's part of memory that has the bucket's layout."""
        return memory[self.begin : self.end]

    def parameters_of(self, rank: int) -> Any:
        """Returns the memory of the parameters that a rank owns."""
        begin, end = self.placement.part(rank)
        return self._memory[begin:end]

    def all_gather(self) -> UnderWay:
        """Sends this rank's part of the parameters to all ranks, and receives theirs."""
        own, whole = self.part(self._memory), self._memory
        return UnderWay([self._comm.all_gather(own, out=whole, counts=self.counts, async_op=True)])
