"""Allocates arrays (in shared memory, or like another array), and packs those that are not contiguous."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard, cast, overload

import numpy as np

from ringreduce import _engine
from ringreduce._engine import values
from ringreduce.annotations import Array

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

__all__ = ["empty", "zeros"]

Shape = int | tuple[int, ...]


def _torch() -> Any:
    """Returns torch if it has been imported, else None."""
    return sys.modules.get("torch")


def is_tensor(x: object) -> TypeGuard[Any]:
    torch = _torch()
    return torch is not None and isinstance(x, torch.Tensor)


@overload
def empty(shape: Shape, dtype: npt.DTypeLike = "float32") -> np.ndarray[Any, np.dtype[Any]]: ...
@overload
def empty(shape: Shape, dtype: torch.dtype) -> torch.Tensor: ...
def empty(shape: Shape, dtype: Any = "float32") -> Any:
    """Returns an array in shared memory. Collectives read and write it in place, without staging copies.

    Args:
        shape: a length or a tuple of lengths.
        dtype: a NumPy dtype or its name for a NumPy array, or a torch dtype for a tensor.

    Returns:
        An array of that shape. Its values are zero, because new pages are, but only :func:`zeros` promises that. The
        memory is freed with the last reference to the array, even if peers have mapped it.

    Raises:
        TypeError: the dtype is unknown.
        ValueError: a length is negative.
        MemoryError: there is not enough memory.
    """
    given = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, bytes) else (shape,)
    lengths = [values.whole(length, "each length of shape") for length in given]
    torch = _torch()
    of_torch = torch is not None and isinstance(dtype, torch.dtype)
    kind = dtype if of_torch else _numpy_dtype(dtype)
    nbytes = math.prod(lengths) * kind.itemsize
    raw = _engine.allocate(values.whole(max(nbytes, 1), "the number of bytes of shape", 1))[:nbytes]
    if of_torch:
        return torch.from_numpy(raw).view(kind).view(lengths)
    return raw.view(kind).reshape(lengths)


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    with contextlib.suppress(TypeError, ValueError):
        found: np.dtype[Any] = np.dtype(dtype)
        if dtype is not None and not found.hasobject and found.itemsize:
            return found
    raise TypeError(f"dtype must be a NumPy or torch dtype of numbers, or its name, not {dtype!r}")


@overload
def zeros(shape: Shape, dtype: npt.DTypeLike = "float32") -> np.ndarray[Any, np.dtype[Any]]: ...
@overload
def zeros(shape: Shape, dtype: torch.dtype) -> torch.Tensor: ...
def zeros(shape: Shape, dtype: Any = "float32") -> Any:
    """Returns an array in shared memory, filled with zeros. The arguments are those of :func:`empty`."""
    return empty(shape, dtype)


def shape_of(x: Array) -> tuple[int, ...]:
    if isinstance(x, np.ndarray) or is_tensor(x):
        return tuple(x.shape)
    shape: tuple[int, ...] = _engine.shape_of(x)
    return shape


def like(x: Array, shape: tuple[int, ...]) -> Any:
    """Returns a new array of x's library and dtype. If x is no tensor or GPU array, it is a NumPy array."""
    if is_tensor(x):
        return x.new_empty(shape)
    if hasattr(x, "__cuda_array_interface__") or is_on_gpu_by_dlpack(x):
        return _on_gpu_like(x, shape)
    return np.empty(shape, as_numpy(x).dtype)


def is_on_gpu_by_dlpack(x: Array) -> bool:
    if not hasattr(x, "__dlpack_device__"):
        return False
    device = x.__dlpack_device__()
    return isinstance(device, tuple) and device[:1] in ((2,), (13,))  # kDLCUDA, kDLCUDAManaged


def _on_gpu_like(x: Array, shape: tuple[int, ...]) -> Any:
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        with x.device:
            return cupy.empty(shape, x.dtype)
    raise ValueError(f"out is required: ringreduce cannot make a new {type(x).__name__}")


def as_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Returns a NumPy array that shares the memory of x."""
    if isinstance(x, np.ndarray):
        return x
    if is_tensor(x):
        return np.from_dlpack(x)
    _engine.shape_of(x)  # raises if NumPy must not believe what x says
    try:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(memoryview(x))
    except Exception as error:  # any: of the exporter, or NumPy's
        raise ValueError(f"x cannot be used as a NumPy array: {error}") from error


def packed(x: Array) -> Any:
    """Returns a contiguous copy of x whose memory holds its values (that of a conjugated tensor does not)."""
    if is_tensor(x):
        return x.resolve_conj().resolve_neg().contiguous()
    return np.require(as_numpy(x), requirements=["C", "A"])


def contiguous(x: Array) -> Any:
    """Returns x if it is contiguous, else a packed copy."""
    if is_tensor(x):
        return packed(x)
    if hasattr(x, "__cuda_array_interface__") or is_on_gpu_by_dlpack(x):
        return x
    flags = as_numpy(x).flags
    return x if flags.c_contiguous and flags.aligned else packed(x)


def check_writable(x: Array, name: str) -> None:
    """Raises ValueError now if :func:`unpack` could not write to x."""
    if not is_tensor(x):
        if not as_numpy(x).flags.writeable:
            raise ValueError(f"{name} is read-only, but the result would be written to it")
    elif x.numel() and any(stride == 0 and n > 1 for stride, n in zip(x.stride(), x.shape, strict=True)):
        raise ValueError(
            f"several elements of {name} share memory, as after expand(), but the result would be written to it: "
            "clone() it before the call"
        )


def unpack(source: Array, target: Any) -> None:
    """Copies a contiguous array to one that is not."""
    if is_tensor(target):
        cast(Any, _torch()).no_grad()(target.copy_)(source)
    else:
        as_numpy(target)[...] = source


def rows(x: Array) -> int:
    """Returns the length of x's first axis. A zero-dimensional array has one row."""
    shape = shape_of(x)
    return shape[0] if shape else 1


def row_size(x: Array) -> int:
    """Returns the number of elements in a row."""
    return math.prod(shape_of(x)[1:])
