"""Buckets: tensors of several parameters that travel together, side by side in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from ringreduce.arrays import arrays

__all__ = ["Bucket", "Slot", "allocate", "shaped_like"]


class Slot:
    """A parameter's place in its bucket, and how far its gradient is in the backward pass under way.

    Attributes:
        number: of the parameter, in the model's order.
        name: of the parameter, as messages show it.
        bucket, start: where its gradient is exchanged; start counts elements.
        view: this place in the bucket's buffer, with the parameter's shape and strides.
        came: how often its hook was called in this backward pass.
        expected: how often it will be.
    """

    __slots__ = ("bucket", "came", "expected", "name", "number", "parameter", "start", "view")

    def __init__(self, number: int, name: str, parameter: Any) -> None:
        self.number = number
        self.name = name
        self.parameter = parameter
        self.bucket: Bucket
        self.start = 0
        self.view: Any = None
        self.came = 0
        self.expected: float = 1

    def take(self, more: bool = False) -> None:
        """Copies the parameter's gradient into the bucket; more: adds it to what is there."""
        gradient = self.parameter.grad
        if gradient.layout is not torch.strided:
            raise TypeError(f"the gradient of parameter {self.name} is sparse: only dense ones are averaged")
        with torch.no_grad():
            self.view.add_(gradient) if more else self.view.copy_(gradient)

    def of(self, memory: Any) -> Any:
        """The parameter's place in flat memory that is laid out as the bucket is."""
        return shaped_like(self.parameter, memory[self.start : self.start + self.parameter.numel()])


class Bucket:
    """Parameters of one dtype and device, and memory for their gradients.

    Attributes:
        index, last: its place in the order in which buckets are sent.
        memory, buffer: the gradients, flat, and the memory that they are in, which may be longer; or None.
        left: how many gradients are not ready yet.
    """

    def __init__(self, index: int, slots: Sequence[Slot], last: bool) -> None:
        self.index, self.last = index, last
        self.slots = list(slots)
        self.left = 0
        self.memory: Any = None
        self.buffer: Any = None
        ends = list(accumulate((slot.parameter.numel() for slot in self.slots), initial=0))
        for slot in self.slots:
            slot.bucket = self
        self.arrange(ends[:-1], ends[-1])

    def arrange(self, starts: Sequence[int], length: int) -> None:
        """Where each parameter begins, and how long the bucket is, in elements. It begins without gaps."""
        self.length = length
        for slot, start in zip(self.slots, starts, strict=True):
            slot.start = start

    @property
    def like(self) -> Any:
        """A tensor of the bucket's dtype and device."""
        return self.slots[0].parameter

    @property
    def nbytes(self) -> int:
        return int(self.length * self.like.element_size())

    def allocate(self, length: int | None = None) -> Any:
        """New memory [length] of the bucket's kind; None: for the whole bucket."""
        return allocate(self.length if length is None else length, self.like.dtype, self.like.device)

    def use(self, memory: Any) -> None:
        """Has gradients gather in this memory, of the bucket's length at least; None: in none."""
        self.memory = memory
        self.buffer = None if memory is None else memory[: self.length]
        for slot in self.slots:
            slot.view = None if memory is None else slot.of(self.buffer)


def allocate(count: int, dtype: Any, device: Any) -> Any:
    """A tensor [count]; on the CPU in shared memory, where collectives need no staging copies."""
    if device.type == "cpu":
        return arrays.empty(count, dtype)
    return torch.empty(count, dtype=dtype, device=device)


def shaped_like(parameter: Any, flat: Any) -> Any:
    """A view of flat memory with the parameter's shape, and with its strides where they leave no gaps."""
    strides = parameter.stride()
    if torch.empty_like(parameter, device="meta").stride() == strides:
        return flat.as_strided(parameter.shape, strides)
    return flat.view(parameter.shape)
