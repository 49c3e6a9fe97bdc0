"""Times the collectives of whatever MPI mpi4py was started under, by the rules of protocol.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from protocol import Array, Library, arguments, measure_sizes

WORLD = MPI.COMM_WORLD


def prepare(collective: str, buffer: Array) -> tuple[Callable[[], Any], Array]:
    # Explicit buffers are mpi4py's fastest call: it need not find out what it was given.
    block = buffer.size // WORLD.size
    whole = [buffer, buffer.size, MPI.FLOAT]
    if collective == "all_reduce":
        return lambda: WORLD.Allreduce(MPI.IN_PLACE, whole, MPI.SUM), buffer
    if collective == "reduce_scatter":
        return lambda: WORLD.Reduce_scatter_block(MPI.IN_PLACE, buffer, MPI.SUM), buffer[:block]
    return lambda: WORLD.Allgather(MPI.IN_PLACE, buffer), buffer


def maximum(values: Array) -> Array:
    result = np.empty_like(values)
    WORLD.Allreduce(values, result, MPI.MAX)
    return result


if __name__ == "__main__":
    measure_sizes(Library("mpi4py", WORLD.rank, WORLD.size, WORLD.Barrier, maximum, prepare), arguments())
