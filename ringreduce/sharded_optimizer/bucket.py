"""Buckets: parameters side by side in memory that collectives use in place, and this rank's part of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.bucket import shaped_like
from ringreduce.data_parallel.memory import allocate
from ringreduce.sharded_optimizer.placement import Placement
from ringreduce.work import Work

__all__ = ["ALIGNMENT", "Bucket", "Slot"]

ALIGNMENT = 64  # bytes: a cache line, and the longest vectors


class Slot:
    """A parameter, and what this rank owns of it.

    Attributes:
        number: of the parameter, over all groups in order.
        group: the number of its group.
        start: where it begins in the bucket's memory, in elements.
        first, last: which of its elements, in memory order, are this rank's; equal where none is.
        piece: these elements, as a parameter for the optimizer inside; None where there are none. Cut by elements it
            is one-dimensional, else it has the parameter's shape.
        came: this rank's backward passes have brought a gradient of it since they were last cleared.
    """

    def __init__(self, number: int, group: int, parameter: Any) -> None:
        self.number = number
        self.group = group
        self.parameter = parameter
        self.bucket: Bucket
        self.start = self.first = self.last = 0
        self.piece: Any = None
        self.came = False

    def shaped(self, memory: Any) -> Any:
        """The parameter's place in a bucket's memory (or in a copy of it), with its shape and strides."""
        return shaped_like(self.parameter, memory[self.start : self.start + self.parameter.numel()])

    def piece_of(self, whole: Any) -> Any:
        """This rank's piece of a tensor with the parameter's shape; a view where the strides are the same, too."""
        if self.piece.shape == self.parameter.shape and self.last - self.first == self.parameter.numel():
            return whole
        if whole.stride() != self.parameter.stride():
            whole = torch.empty_like(self.parameter, dtype=whole.dtype, device=whole.device).copy_(whole)
        return whole.as_strided((whole.numel(),), (1,), whole.storage_offset())[self.first : self.last]


class Bucket:
    """Parameters of one dtype and device.

    Attributes:
        memory: all of them, flat. The parameters are views of it.
        own: where this rank's part begins and ends.
        gradient: the averaged gradients of that part, flat; None before the first.
        has_gradient: gradients were put there since they were last cleared.
    """

    def __init__(
        self, slots: Sequence[Slot], placement: Placement, comm: Communicator, by_elements: bool
    ) -> None:
        self.slots = list(slots)
        self.own = placement.part(comm.rank)
        # Equal parts need no counts, and go faster without.
        self.counts = placement.counts if len(set(placement.counts)) > 1 else None
        self.gradient: Any = None
        self.has_gradient = False
        self._comm = comm
        like = self.slots[0].parameter
        self.memory = allocate(sum(placement.counts), like.dtype, like.device)
        for slot, start in zip(self.slots, placement.starts, strict=True):
            self._move_in(slot, start, by_elements)

    def _move_in(self, slot: Slot, start: int, by_elements: bool) -> None:
        slot.bucket, slot.start = self, start
        size = slot.parameter.numel()
        home = slot.shaped(self.memory)
        home.copy_(slot.parameter.detach())
        slot.parameter.data = from_dlpack(home)  # else saving it would save the whole bucket's memory
        begin, end = max(start, self.own[0]), min(start + size, self.own[1])
        if begin < end:
            slot.first, slot.last = begin - start, end - start
            piece = self.memory[begin:end] if by_elements else home
            slot.piece = torch.nn.Parameter(piece, requires_grad=slot.parameter.requires_grad)

    def is_home(self, slot: Slot) -> bool:
        """Whether the parameter still is where it was put."""
        expected = self.memory.data_ptr() + slot.start * self.memory.element_size()
        return slot.parameter.numel() == 0 or bool(slot.parameter.data_ptr() == expected)

    def part(self, memory: Any) -> Any:
        """This rank's part of the bucket's memory (or of a copy of it)."""
        return memory[self.own[0] : self.own[1]]

    def gradient_of(self, slot: Slot) -> Any:
        """The averaged gradient of a slot's piece."""
        begin = slot.start + slot.first - self.own[0]
        flat = self.gradient[begin : begin + slot.last - slot.first]
        return flat if slot.piece.dim() == 1 else shaped_like(slot.piece, flat)

    def reduce_scatter(self, gradients: Any, out: Any) -> Work:
        """Averages all ranks' gradients, of the whole bucket, into out: this rank's part."""
        work: Work = self._comm.reduce_scatter(gradients, "avg", out=out, counts=self.counts, async_op=True)
        return work

    def all_gather(self) -> Work:
        """Sends this rank's part of the parameters to all ranks, and gets theirs."""
        work: Work = self._comm.all_gather(
            self.part(self.memory), out=self.memory, counts=self.counts, async_op=True
        )
        return work
