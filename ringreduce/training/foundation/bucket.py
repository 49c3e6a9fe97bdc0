"""Buckets: the gradients of several parameters, side by side in memory, which travel together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from ringreduce.communicator.arrays import arrays

__all__ = ["Bucket", "Slot", "allocate", "shaped_like"]


class Slot:
    """A parameter's place in its bucket, and the progress of its gradient in the current backward pass.

    Attributes:
        number: the parameter's number, in the model's order.
        name: the parameter's name in messages.
        sparse: whether its gradients are rows, which stay in ``parameter.grad``. Its bucket has no other parameter.
        bucket, start: the bucket, and the offset in elements, where its gradient is exchanged.
        view: this place in the bucket's buffer, with the parameter's shape and strides.
        came: how often its hook has been called in this backward pass.
        expected: how often it will be called.
    """

    __slots__ = ("bucket", "came", "expected", "name", "number", "parameter", "sparse", "start", "view")

    def __init__(self, number: int, name: str, parameter: Any, sparse: bool = False) -> None:
        self.number = number
        self.name = name
        self.sparse = sparse
        self.parameter = parameter
        self.bucket: Bucket
        self.start = 0
        self.view: Any = None
        self.came = 0
        self.expected: float = 1

    def take(self, more: bool = False) -> None:
        """Copies the parameter's gradient to the bucket, or adds it if more is True."""
        self.check_gradient()
        gradient = self.parameter.grad
        with torch.no_grad():
            self.view.add_(gradient) if more else self.view.copy_(gradient)

    def check_gradient(self) -> None:
        """Raises TypeError if the parameter's gradient is sparse."""
        gradient = self.parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of parameter {self.name} is sparse. DataParallel averages the sparse gradients of "
                "Embedding and EmbeddingBag with sparse=True, and a ShardedOptimizer takes none"
            )

    def of(self, memory: Any) -> Any:
        """Returns the parameter's place in flat memory that has the bucket's layout."""
        return shaped_like(self.parameter, memory[self.start : self.start + self.parameter.numel()])


class Bucket:
    """Parameters of one dtype and device, and memory for their gradients.

    Attributes:
        index, last: its place in the order in which buckets are sent, and whether it is the last one.
        buffer, memory: the flat gradients, and the memory that holds them, which may be longer. Or None.
        left: the number of gradients that are not ready yet.
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
        """Sets where each parameter begins, and the length of the bucket, in elements. At first there are no gaps."""
        self.length = length
        for slot, start in zip(self.slots, starts, strict=True):
            slot.start = start

    @property
    def sparse(self) -> bool:
        return bool(self.slots[0].sparse)

    @property
    def like(self) -> Any:
        """Any tensor of the bucket's dtype and device."""
        return self.slots[0].parameter

    @property
    def nbytes(self) -> int:
        return int(self.length * self.like.element_size())

    def allocate(self, length: int | None = None) -> Any:
        """Returns new memory of the bucket's dtype and device. length None means that of the bucket."""
        return allocate(self.length if length is None else length, self.like.dtype, self.like.device)

    def use(self, memory: Any) -> None:
        """Sets the memory that collects the gradients, at least as long as the bucket. None removes it."""
        self.memory = memory
        self.buffer = None if memory is None else memory[: self.length]
        for slot in self.slots:
            slot.view = None if memory is None else slot.of(self.buffer)


def allocate(count: int, dtype: Any, device: Any) -> Any:
    """Returns a tensor [count]. On the CPU it is in shared memory, where collectives need no staging copies."""
    if device.type == "cpu":
        return arrays.empty(count, dtype)
    return torch.empty(count, dtype=dtype, device=device)


def shaped_like(parameter: Any, flat: Any) -> Any:
    """Returns a view of flat memory with the parameter's shape, and its strides if they leave no gaps."""
    strides = parameter.stride()
    if torch.empty_like(parameter, device="meta").stride() == strides:
        return flat.as_strided(parameter.shape, strides)
    return flat.view(parameter.shape)
