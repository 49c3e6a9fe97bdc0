"""Times the collectives of the MPI that mpi4py runs under, by the rules of protocol.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

if TYPE_CHECKING or __package__:
    from ringreduce.studies.bench import protocol
    from ringreduce.studies.bench.problem import MESSAGES, Array, Problem, messages, partner, receives
else:
    import protocol
    from problem import MESSAGES, Array, Problem, messages, partner, receives

WORLD = MPI.COMM_WORLD
OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
VENDORS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "impi"}


def vendor() -> str:
    """Returns the name of this MPI in tables."""
    name = str(MPI.get_vendor()[0])
    return VENDORS.get(name, name.lower().replace(" ", ""))


def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
    if problem.op not in OPS:
        raise ValueError(f"MPI has no op {problem.op}")
    # Calls with explicit buffers are mpi4py's fastest, because it need not inspect its arguments.
    block = buffer.size // WORLD.size
    whole = [buffer, buffer.size, MPI.Datatype.fromcode(buffer.dtype.char)]
    op = getattr(MPI, OPS[problem.op])
    kind = problem.collective
    if kind == "barrier":
        return WORLD.Barrier, buffer
    if kind in MESSAGES:
        room = np.zeros_like(buffer)
        there, ends = [room, room.size, whole[2]], (WORLD.rank, WORLD.size)
        call = messages(
            kind, WORLD.rank, partner(kind, *ends), partial(WORLD.Send, whole), partial(WORLD.Recv, there)
        )
        return call, room if receives(kind, *ends) else room[:0]
    if kind == "all_reduce":
        return lambda: WORLD.Allreduce(MPI.IN_PLACE, whole, op), buffer
    if kind == "broadcast":
        return lambda: WORLD.Bcast(whole, problem.root), buffer
    if kind == "reduce_scatter":
        return lambda: WORLD.Reduce_scatter_block(MPI.IN_PLACE, buffer, op), buffer[:block]
    if kind == "all_gather":
        return lambda: WORLD.Allgather(MPI.IN_PLACE, buffer), buffer
    raise ValueError(f"{kind} is not timed for MPI")


def maximum(values: Array) -> Array:
    result = np.empty_like(values)
    WORLD.Allreduce(values, result, MPI.MAX)
    return result


if __name__ == "__main__":
    if sys.argv[1:] == ["--vendor"]:
        print(vendor())
    else:
        library = protocol.Library(vendor(), WORLD.rank, WORLD.size, WORLD.Barrier, maximum, prepare)
        protocol.measure_sizes(library, protocol.arguments())
