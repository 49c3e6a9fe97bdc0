"""Arrays that have moved to shared memory, and what shows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringreduce import _engine

K, M = 1 << 10, 1 << 20


def is_shared(array: Any) -> bool:
    return _engine.is_shared(array.ctypes.data, array.nbytes)


def use(comm: Any, array: Any) -> None:
    """A collective that uses the array and leaves its values on all ranks, if they are equal."""
    comm.all_reduce(array, op="max", out=array)


def moved(comm: Any, bytes: int, value: int = 0) -> Any:
    """An array of int32 whose elements are value, ..., and that has moved."""
    array = np.arange(value, value + bytes // 4, dtype=np.int32)
    for _ in range(3):
        use(comm, array)
    assert is_shared(array)
    return array
