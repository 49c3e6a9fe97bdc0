"""Buckets: gradients that are exchanged together, side by side in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.data_parallel.memory import allocate

__all__ = ["Bucket", "Slot"]


class Slot:
    """A parameter's place in its bucket, and how far its gradient is in the backward pass under way.

    Attributes:
        number: of the parameter, in the model's order.
        bucket, view: where its gradient is exchanged; the view has the parameter's shape and strides.
        came: how often its hook was called in this backward pass.
        expected: how often it will be.
    """

    __slots__ = ("bucket", "came", "expected", "name", "number", "parameter", "view")

    def __init__(self, number: int, name: str, parameter: Any) -> None:
        self.number = number
        self.name = name
        self.parameter = parameter
        self.bucket: Bucket
        self.view: Any = None
        self.came = 0
        self.expected: float = 1

    def take(self) -> None:
        """Has the parameter's gradient live in the bucket from now on."""
        gradient = self.parameter.grad
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of parameter '{self.name}' is sparse: DataParallel takes dense ones"
            )
        self.view.copy_(gradient.detach() if gradient.requires_grad else gradient)
        self.parameter.grad = self.view

    def fill(self) -> None:
        """Makes up for a gradient that this backward pass does not bring: what was there before it, or zeros."""
        if self.parameter.grad is None:
            self.view.zero_()
        elif self.parameter.grad is not self.view:
            self.take()


class Bucket:
    """Parameters of one dtype and device, and memory for their gradients.

    Attributes:
        index: its place in the order in which buckets are sent.
        last: whether no other follows it.
        buffer: the gradients, flat, without gaps.
        rows: memory for as many sets of gradients as asked for, each padded with zeros to a multiple of elements;
            buffer and the slots' views are in one of them.
        left: how many gradients are not ready yet.
    """

    def __init__(
        self, index: int, slots: Sequence[Slot], last: bool, rows: int = 1, multiple: int = 1
    ) -> None:
        self.index = index
        self.last = last
        self.slots = list(slots)
        self.left = len(self.slots)
        like = self.slots[0].parameter
        self._count = sum(slot.parameter.numel() for slot in self.slots)
        length = -(-self._count // multiple) * multiple
        self.rows = allocate(rows * length, like.dtype, like.device).view(rows, length)
        self.rows[:, self._count :].zero_()
        for slot in self.slots:
            slot.bucket = self
        self.use_row(0)

    def use_row(self, row: int) -> None:
        self.buffer = self.rows[row, : self._count]
        start = 0
        for slot in self.slots:
            end = start + slot.parameter.numel()
            slot.view = shaped_like(slot.parameter, self.buffer[start:end])
            start = end


def shaped_like(parameter: Any, flat: Any) -> Any:
    """A view of flat memory with the parameter's shape, and with its strides where they leave no gaps."""
    strides = parameter.stride()
    if torch.empty_like(parameter, device="meta").stride() == strides:
        return flat.as_strided(parameter.shape, strides)
    return flat.view(parameter.shape)
