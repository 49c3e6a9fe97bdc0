"""TensorFlow's tensors, as the operations need them: NumPy arrays over their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from ringreduce.communicator.arrays import arrays
from ringreduce.frameworks.horovod.kit import Kit
from ringreduce.frameworks.horovod.reductions import all_reduce_of_zeros
from ringreduce.frameworks.horovod.request import stand_ins

__all__ = ["NumPyKit", "array_at"]


def array_at(address: int | None, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Returns an array over memory of TensorFlow's, which must stay as long as the array is used."""
    if not address or not prod(shape):
        return np.empty(shape, dtype)
    # NumPy's own interface, by which it also knows the memory as writable.
    described = {
        "data": (address, False),
        "shape": (prod(shape) * dtype.itemsize,),
        "typestr": "|u1",
        "version": 3,
    }
    return np.asarray(_Memory(described)).view(dtype).reshape(shape)


class _Memory:
    def __init__(self, described: dict[str, Any]) -> None:
        self.__array_interface__ = described


class NumPyKit(Kit):
    """Arrays, whose results lie in memory that ``allocate(shape, dtype)`` returns."""

    def __init__(self, allocate: Callable[[Sequence[int], np.dtype[Any]], Any] = np.empty) -> None:
        self._allocate = allocate

    def kind(self, x: Any) -> str:
        return str(x.dtype.name)

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        return self._allocate(tuple(shape), like.dtype)

    def zeros(self, shape: Sequence[int], kind: Any) -> Any:
        return np.zeros(tuple(shape), tf.as_dtype(kind).as_numpy_dtype)

    def message(self, count: int, like: Any) -> Any:
        return arrays.empty(count, like.dtype)

    def numbers(self, values: Any) -> Any:
        found = self.empty(values.shape, values)
        self.copy([found], [values])
        return found

    def copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source, casting="unsafe")

    def is_float(self, x: Any) -> bool:
        return x.dtype.kind in "fcV"  # V: bfloat16 and the narrower ones

    def is_bool(self, x: Any) -> bool:
        return bool(x.dtype.kind == "b")

    def scaled(self, x: Any, factor: float) -> Any:
        wide = self.wide(x) if self.is_float(x) else x.astype(np.float64)
        return (wide * factor).astype(x.dtype)

    def quotient(self, x: Any, divisor: int) -> Any:
        return (x.astype(np.int64) - np.fmod(x, divisor)) // divisor

    def wide(self, x: Any) -> Any:
        return x.astype(np.promote_types(x.dtype, np.float32))

    def dot(self, a: Any, b: Any) -> float:
        return float(np.sum(a * b, dtype=np.float64))


stand_ins[str] = partial(all_reduce_of_zeros, NumPyKit())
