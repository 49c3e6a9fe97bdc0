"""Types for annotations: what collectives take and return. Importing them imports no array library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from ringreduce.schedules import Schedule

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any  # Python has none before 3.12

__all__ = ["Algorithm", "Array", "Op", "Stream", "Transport", "Wire", "WritableArray"]


class SupportsDLPack(Protocol):
    """An array that supports DLPack, such as those of NumPy, torch, CuPy and JAX."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArray(Protocol):
    """An array in GPU memory with a ``__cuda_array_interface__``, such as those of CuPy and Numba."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class WritableArray(SupportsDLPack, Protocol):
    """A NumPy, torch or CuPy array. Collectives make new arrays of the same type."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


Array: TypeAlias = SupportsDLPack | SupportsCudaArray | Buffer
"""An argument of a collective: a NumPy, torch or CuPy array, or any object with DLPack or the buffer protocol."""

A = TypeVar("A", bound=WritableArray)

Stream: TypeAlias = Any
"""A handle of a CUDA stream, a stream of torch or CuPy, or any object with ``__cuda_stream__``."""

Algorithm: TypeAlias = str | Callable[..., Schedule]
"""The name of an algorithm, or a function (world, rank) -> Schedule."""


class Operator(Protocol):
    """An operator that :func:`ringreduce.op` made."""

    @property
    def commutative(self) -> bool: ...
    @property
    def name(self) -> str: ...


OpName = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]

Op: TypeAlias = OpName | Operator
"""How values are combined."""

Transport = Literal["auto", "shm", "tcp", "shm+tcp", "ofi", "shm+ofi", "mpi", "shm+mpi"]
"""How bytes travel. :func:`ringreduce.init` explains each value."""

Wire = Literal["bf16", "fp16", "int8", "fp8"]
"""The format in which values travel, if it is not their own dtype."""

# For overloads: the type of a call's result depends on async_op.
No = Literal[False]
Yes = Literal[True]


class MessageArgs(TypedDict, total=False):
    tag: int | None
    timeout: float | None
    stream: Stream


class Args(TypedDict, total=False):
    algorithm: Algorithm
    wire: Wire | None
    timeout: float | None
    stream: Stream


class BlockArgs(Args, total=False):
    counts: Sequence[int] | None


class ExchangeArgs(Args, total=False):
    send_counts: Sequence[int] | None
    recv_counts: Sequence[int] | None


class ReductionArgs(Args, total=False):
    factor: float | None


class BlockReductionArgs(ReductionArgs, BlockArgs, total=False):
    pass
