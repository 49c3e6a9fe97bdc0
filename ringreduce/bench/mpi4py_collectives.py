"""Times the collectives of whatever MPI mpi4py was started under, by the rules of protocol.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

if TYPE_CHECKING or __package__:
    from ringreduce.bench.protocol import Array, Library, Problem, arguments, measure_sizes
else:
    from protocol import Array, Library, Problem, arguments, measure_sizes

WORLD = MPI.COMM_WORLD
OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
VENDORS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "impi"}


def vendor() -> str:
    """The name of this MPI in tables."""
    name = str(MPI.get_vendor()[0])
    return VENDORS.get(name, name.lower().replace(" ", ""))


def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
    if problem.op not in OPS:
        raise ValueError(f"MPI has no {problem.op}")
    # Explicit buffers are mpi4py's fastest call: it need not find out what it was given.
    block = buffer.size // WORLD.size
    whole = [buffer, buffer.size, MPI.Datatype.fromcode(buffer.dtype.char)]
    op = getattr(MPI, OPS[problem.op])
    if problem.collective == "all_reduce":
        return lambda: WORLD.Allreduce(MPI.IN_PLACE, whole, op), buffer
    if problem.collective == "broadcast":
        return lambda: WORLD.Bcast(whole, 0), buffer
    if problem.collective == "reduce_scatter":
        return lambda: WORLD.Reduce_scatter_block(MPI.IN_PLACE, buffer, op), buffer[:block]
    if problem.collective == "all_gather":
        return lambda: WORLD.Allgather(MPI.IN_PLACE, buffer), buffer
    raise ValueError(f"MPI is not timed in {problem.collective}")


def maximum(values: Array) -> Array:
    result = np.empty_like(values)
    WORLD.Allreduce(values, result, MPI.MAX)
    return result


if __name__ == "__main__":
    if sys.argv[1:] == ["--vendor"]:
        print(vendor())
    else:
        measure_sizes(Library(vendor(), WORLD.rank, WORLD.size, WORLD.Barrier, maximum, prepare), arguments())
