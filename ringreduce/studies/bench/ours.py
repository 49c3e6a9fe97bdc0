"""This library behind the interface that protocol.py measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ringreduce import schedules
from ringreduce.communicator import Communicator
from ringreduce.communicator.arrays.arrays import empty
from ringreduce.studies.bench.problem import MESSAGES, UNEVEN, Array, Problem, messages, partner, receives
from ringreduce.studies.bench.protocol import Library

COLLECTIVES = tuple(name for name in schedules.COLLECTIVES if name != "barrier")
NO_CHOICE = ("barrier", *MESSAGES)
"""Operations without a choice: they take neither an algorithm nor a wire format."""
TIMED = (*COLLECTIVES, *UNEVEN, *NO_CHOICE)


def _arguments(comm: Communicator, problem: Problem, buffer: Array, new: Callable[[int], Array]) -> Any:
    """Returns the positional and named arguments of the method, and the array that holds the result."""
    facts, is_root = schedules.COLLECTIVES[problem.plain], comm.rank == problem.root
    blocks = problem.blocks(comm.rank, comm.size)
    # In place has NCCL's meaning: a single block is this rank's own block in the whole buffer.
    parts: dict[str, Any] = {"own_block": buffer[blocks[comm.rank]], "nothing": None}
    given, target = parts.get(facts.before, buffer), parts.get(facts.after, buffer)
    if facts.name == "barrier":
        return (), {}, buffer
    if facts.name == "broadcast":
        return (buffer, problem.root), {}, buffer
    if facts.before == "on_root" and not is_root:
        given = None
    positional = (given, *[problem.root] * facts.rooted, *[problem.op] * facts.reduces)
    counts = [block.stop - block.start for block in blocks] if problem.collective in UNEVEN else None
    named: dict[str, Any] = {} if counts is None else {"counts": counts}
    if facts.name == "all_to_all" and counts is not None:
        named = {"send_counts": counts, "recv_counts": counts}
    if facts.after == "on_root" and not is_root:
        return positional, named, buffer[:0]
    if problem.separate:
        target = new(target.size)
    result = target[:0] if facts.after == "before_own" and comm.rank == 0 else target
    return positional, named if target is given else {**named, "out": target}, result


def _written(method: Callable[..., Any], given: Sequence[Any], named: dict[str, Any]) -> Callable[[], Any]:
    """Returns the call as a program writes it. partial() would put named arguments into a dictionary: 0.1 us."""
    places = [f"given{number}" for number in range(len(given))]
    call = ", ".join([*places, *(f"{name}={name}" for name in named)])
    make = eval(f"lambda {', '.join(['method', *places, *named])}: lambda: method({call})")
    written: Callable[[], Any] = make(method, *given, **named)
    return written


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
        method = getattr(comm, problem.plain)
        if asynchronous:
            return finished(partial(method, *positional, **named)), result
        return _written(method, positional, named), result

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
