"""A rank of jax_calls.py: times all-reduces inside jit, by ringreduce or by mpi4jax, and prints a line for each."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from bench.frameworks.rank import batch_of, figures

IN_LOOP = 100  # calls in a program with a loop
LARGEST_IN_LOOP = 256 << 10


class Ringreduce:
    def __init__(self) -> None:
        import ringreduce

        self.comm = ringreduce.init()
        self.rank, self.size, self.barrier = self.comm.rank, self.comm.size, self.comm.barrier

    def maximum(self, values: np.ndarray) -> np.ndarray:
        return self.comm.all_reduce(values.copy(), "max")

    def all_reduce(self, x: Any) -> Any:
        import ringreduce.jax as rj

        return rj.all_reduce(x, comm=self.comm)


class Mpi4jax:
    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size, self.barrier = self.comm.rank, self.comm.size, self.comm.Barrier

    def maximum(self, values: np.ndarray) -> np.ndarray:
        found = np.empty_like(values)
        self.comm.Allreduce(values, found, self.mpi.MAX)
        return found

    def all_reduce(self, x: Any) -> Any:
        import mpi4jax

        return mpi4jax.allreduce(x, self.mpi.SUM)


def measured(library: Any, kind: str, nbytes: int, budget: float) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    if kind == "loop":  # of zeros, which stay what they are
        body = lambda _, x: library.all_reduce(x)  # noqa: E731
        program, start = jax.jit(lambda x: jax.lax.fori_loop(0, IN_LOOP, body, x)), 0
        calls, batch = IN_LOOP, 1
    else:
        program, start = jax.jit(library.all_reduce), library.rank + 1
        calls = batch = batch_of(nbytes)
    x = jnp.full(nbytes // 4, start, "float32")
    wanted = 0 if kind == "loop" else library.size * (library.size + 1) // 2
    wrong = int(np.count_nonzero(np.asarray(program(x)) != wanted))
    rewrite: Callable[[Any], Any] = jax.jit(lambda x: x + 1 - 1)

    def sample() -> float:
        fresh = rewrite(x).block_until_ready()
        library.barrier()
        began = perf_counter()
        for _ in range(batch):
            program(fresh).block_until_ready()
        took = perf_counter() - began
        library.barrier()
        return took / calls

    found = figures(sample, calls, budget, library.maximum)
    return {"kind": kind, "bytes": nbytes, **found, "wrong": wrong}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["ringreduce", "mpi4jax"])
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per figure")
    options = parser.parse_args()
    library = Ringreduce() if options.library == "ringreduce" else Mpi4jax()
    for nbytes in options.sizes:
        for kind in ("call", "loop") if nbytes <= LARGEST_IN_LOOP else ("call",):
            row = measured(library, kind, nbytes, options.budget)
            if library.rank == 0:
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
