"""torch's tensors, as the operations need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.communicator.arrays import arrays
from ringreduce.frameworks.horovod.kit import Kit

__all__ = ["KIT"]


class TorchKit(Kit):
    """Dense tensors in CPU memory, of any strides."""

    def kind(self, x: Any) -> Any:
        return x.dtype

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        return like.new_empty(tuple(shape))

    def zeros(self, shape: Sequence[int], kind: Any) -> Any:
        return torch.zeros(tuple(shape), dtype=kind)

    def message(self, count: int, like: Any) -> Any:
        return arrays.empty(count, like.dtype)

    def numbers(self, values: Any) -> Any:
        return torch.from_numpy(values)

    def copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        torch._foreach_copy_(list(targets), list(sources))

    def is_float(self, x: Any) -> bool:
        return bool(x.is_floating_point() or x.is_complex())

    def is_bool(self, x: Any) -> bool:
        return x.dtype is torch.bool

    def scaled(self, x: Any, factor: float) -> Any:
        wide = self.wide(x) if self.is_float(x) else x.double()
        return (wide * factor).to(x.dtype)

    def quotient(self, x: Any, divisor: int) -> Any:
        return torch.div(x, divisor, rounding_mode="trunc")

    def wide(self, x: Any) -> Any:
        return x.to(torch.promote_types(x.dtype, torch.float32))

    def dot(self, a: Any, b: Any) -> float:
        return float(torch.sum((a * b).double()))


KIT = TorchKit()
