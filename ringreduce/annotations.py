"""Types for annotations: what collectives take and return. No array library is imported for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from ringreduce.arrays.streams import Stream
from ringreduce.schedules import Schedule

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any  # Python has none before 3.12

__all__ = ["Algorithm", "Array", "Op", "Transport", "Wire", "WritableArray"]


class SupportsDLPack(Protocol):
    """An array that other libraries may read by DLPack: NumPy's, torch's, CuPy's, JAX's and more."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArray(Protocol):
    """An array in a GPU's memory, described as Numba and CuPy do it."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class WritableArray(SupportsDLPack, Protocol):
    """An array of NumPy, torch or CuPy: collectives make new ones of the same type."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


Array: TypeAlias = SupportsDLPack | SupportsCudaArray | Buffer
"""What collectives take: an array of NumPy, torch or CuPy, or anything that speaks DLPack or the buffer protocol."""

A = TypeVar("A", bound=WritableArray)

Algorithm: TypeAlias = str | Callable[..., Schedule]
"""A name, or a function (world, rank) -> Schedule."""

Op = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]
"""How values are combined."""

Transport = Literal["auto", "shm", "tcp", "shm+tcp", "mpi", "shm+mpi"]
"""How bytes travel; :func:`ringreduce.init` says what each is."""

Wire = Literal["bf16", "fp16", "int8", "fp8"]
"""What values travel as, where that is not their own type."""

# For the overloads, by which a call's result depends on async_op.
No = Literal[False]
Yes = Literal[True]


class MessageArgs(TypedDict, total=False):
    tag: int
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
