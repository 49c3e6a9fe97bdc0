"""This library behind the interface that protocol.py measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ringreduce import schedules
from ringreduce.communicator import Communicator
from ringreduce.communicator.arrays.arrays import empty
from ringreduce.studies.bench.problem import BLOCKWISE, MESSAGES, Array, Problem, messages, partner, receives
from ringreduce.studies.bench.protocol import Library

COLLECTIVES = tuple(name for name in schedules.COLLECTIVES if name != "barrier")
NO_CHOICE = ("barrier", *MESSAGES)
"""Operations without a choice: they take neither an algorithm nor a wire format."""
TIMED = (*COLLECTIVES, *NO_CHOICE)


def _arguments(comm: Communicator, problem: Problem, buffer: Array, new: Callable[[int], Array]) -> Any:
    """Returns the positional and named arguments of the method, and the array that holds the result."""
    collective, root = problem.collective, comm.rank == problem.root
    block = buffer.size // comm.size
    own = buffer[comm.rank * block : (comm.rank + 1) * block]
    count = block if schedules.COLLECTIVES[collective].after == "own_block" else buffer.size
    # In place has NCCL's meaning: a single block is this rank's own block in the whole buffer.
    target = (
        (own if count == block and collective in BLOCKWISE else buffer) if problem.in_place else new(count)
    )
    if collective == "broadcast":
        return (buffer, problem.root), {}, buffer
    if collective == "barrier":
        return (), {}, buffer
    if collective in ("all_reduce", "scan", "exscan"):
        result = target[:0] if collective == "exscan" and comm.rank == 0 else target
        return (buffer, problem.op), {} if problem.in_place else {"out": target}, result
    if collective == "reduce_scatter":
        return (buffer, problem.op), {"out": target}, target
    if collective == "reduce":
        return (
            (buffer, problem.root, problem.op),
            {"out": target} if root else {},
            target if root else buffer[:0],
        )
    if collective == "gather":
        return (own, problem.root), {"out": target} if root else {}, target if root else buffer[:0]
    if collective == "scatter":
        return (buffer if root else None, problem.root), {"out": target}, target
    return (own if collective == "all_gather" else buffer,), {"out": target}, target


ROUNDING = {"bf16": 2**-8, "fp16": 2**-11, "int8": 1 / 253, "fp8": 2**-4}
"""The error of one rounding in each wire format, relative to the largest value of the block."""


def ours(
    comm: Communicator,
    algorithm: str,
    shared: bool = False,
    asynchronous: bool = False,
    wire: str | None = None,
) -> Library:
    """Returns the library as protocol.py measures it.

    With ``shared``, ringreduce.empty allocates the buffers. With ``asynchronous``, calls use the progress thread.
    """

    def allocate(nbytes: int) -> Array:
        return np.asarray(empty(nbytes, "uint8")) if shared else np.zeros(nbytes, dtype=np.uint8)

    def finished(call: Callable[..., Any]) -> Callable[..., Any]:
        return (lambda *given: call(*given, async_op=True).wait()) if asynchronous else call

    def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
        def new(count: int) -> Array:
            return allocate(count * buffer.dtype.itemsize).view(buffer.dtype)

        if problem.collective in NO_CHOICE and (algorithm, wire) != ("auto", None):
            raise ValueError(f"{problem.collective} takes neither an algorithm nor a wire format")
        if problem.collective in MESSAGES:
            room, kind = new(buffer.size), problem.collective
            send, recv = finished(partial(comm.send, buffer)), finished(partial(comm.recv, room))
            call = messages(kind, comm.rank, partner(kind, comm.rank, comm.size), send, recv)
            return call, room if receives(kind, comm.rank, comm.size) else room[:0]
        positional, named, result = _arguments(comm, problem, buffer, new)
        if algorithm != "auto":
            named["algorithm"] = algorithm
        if wire is not None:
            named["wire"] = wire
        return finished(partial(getattr(comm, problem.collective), *positional, **named)), result

    # Every partial sum may be rounded. No partial sum is larger than the sum, because no value is negative.
    tolerance = 0.0 if wire is None else ROUNDING[wire] * (comm.size + 1)
    return Library(algorithm, comm.rank, comm.size, comm.barrier, maximum(comm), prepare, allocate, tolerance)


def floor(comm: Communicator, shared: bool = False) -> Library:
    """Returns the floor: all ranks read and write their own buffers at the same time, as x *= c.

    The loop is NumPy's, in one thread. It cannot be optimised away, because c is not known at compile time.
    """

    def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
        return partial(np.multiply, buffer, buffer.dtype.type(2), buffer), buffer

    library = ours(comm, "auto", shared)
    library.name, library.prepare = "floor", prepare
    return library


def maximum(comm: Communicator) -> Callable[[Array], Array]:
    def over_ranks(values: Array) -> Array:
        result = np.array(values, dtype=np.float64)
        comm.all_reduce(result, "max")
        return result

    return over_ranks
