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
    from ringreduce.studies.bench.problem import FACTS, MESSAGES, Array, Problem, messages, partner, receives
else:
    import protocol
    from problem import FACTS, MESSAGES, Array, Problem, messages, partner, receives

WORLD = MPI.COMM_WORLD
VENDORS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "impi"}


def vendor() -> str:
    """Returns the name of this MPI in tables."""
    name = str(MPI.get_vendor()[0])
    return VENDORS.get(name, name.lower().replace(" ", ""))


def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
    op = getattr(MPI, problem.op.upper(), None)
    if op is None:
        raise ValueError(f"MPI has no op {problem.op}")
    # Calls with explicit buffers are mpi4py's fastest, because it need not inspect its arguments.
    datatype = MPI.Datatype.fromcode(buffer.dtype.char)
    whole = [buffer, buffer.size, datatype]
    kind, rank = problem.collective, WORLD.rank
    if kind in MESSAGES:
        room = np.zeros_like(buffer)
        there, ends = [room, room.size, datatype], (rank, WORLD.size)
        call = messages(
            kind, rank, partner(kind, *ends), partial(WORLD.Send, whole), partial(WORLD.Recv, there)
        )
        return call, room if receives(kind, *ends) else room[:0]
    reduces, _, after = FACTS[problem.plain]
    blocks, root, is_root = problem.blocks(rank, WORLD.size), problem.root, rank == problem.root
    counts, offsets = [each.stop - each.start for each in blocks], [each.start for each in blocks]
    block, own = counts[rank], buffer[blocks[rank]]
    out = np.zeros_like(buffer) if problem.plain == "all_to_all" else buffer
    mine = MPI.IN_PLACE if is_root else [own, block, datatype]
    even, even_out = [buffer, block, datatype], [out, block, datatype]
    uneven, uneven_out = ([array, (counts, offsets), datatype] for array in (buffer, out))

    def at_root(whole: Any) -> Any:
        return whole if is_root else None

    calls: dict[str, tuple[Any, ...]] = {
        "all_reduce": (WORLD.Allreduce, MPI.IN_PLACE, whole, op),
        "reduce_scatter": (WORLD.Reduce_scatter_block, MPI.IN_PLACE, even, op),
        "reduce_scatter_v": (WORLD.Reduce_scatter, MPI.IN_PLACE, whole, counts, op),
        "all_gather": (WORLD.Allgather, MPI.IN_PLACE, even),
        "all_gather_v": (WORLD.Allgatherv, MPI.IN_PLACE, uneven),
        "broadcast": (WORLD.Bcast, whole, root),
        "reduce": (WORLD.Reduce, MPI.IN_PLACE if is_root else whole, at_root(whole), op, root),
        "gather": (WORLD.Gather, mine, at_root(even), root),
        "gather_v": (WORLD.Gatherv, mine, at_root(uneven), root),
        "scatter": (WORLD.Scatter, at_root(even), mine, root),
        "scatter_v": (WORLD.Scatterv, at_root(uneven), mine, root),
        "all_to_all": (WORLD.Alltoall, even, even_out),
        "all_to_all_v": (WORLD.Alltoallv, uneven, uneven_out),
        "scan": (WORLD.Scan, MPI.IN_PLACE, whole, op),
        "exscan": (WORLD.Exscan, MPI.IN_PLACE, whole, op),
        "barrier": (WORLD.Barrier,),
    }
    function, *given = calls[kind]
    if (after == "on_root" and not is_root) or (after == "before_own" and rank == 0):
        out = buffer[:0]
    elif after == "own_block":
        out = buffer[:block] if reduces else own  # MPI writes a reduced block to the beginning
    return partial(function, *given), out


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
