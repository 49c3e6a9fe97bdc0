"""How all that is called from Python is measured: bench/peers/protocol.h, which tells the rules, in Python.
Same plan, same fill values, same output.

The differences are those that Python forces: the barrier is the library's own, because a spinning one in
Python would keep the core from the others, and buffers are rewritten from a pattern made beforehand.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from time import perf_counter
from typing import Any

import numpy as np

MAX_ITERATIONS = 300
MIN_ITERATIONS = 7
MAX_BATCH = 100
BATCH_BYTES = 256 << 10
BATCH_SECONDS = 1e-3
WARMUP = 8

ROOT_ONLY = ("reduce", "gather")
BLOCKWISE = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
"""Collectives whose buffers hold a block for each rank."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Problem:
    """What is timed. ``nbytes`` is the whole buffer (all ranks' blocks together), nccl-tests' size."""

    collective: str
    nbytes: int
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = True

    @property
    def count(self) -> int:
        return self.nbytes // numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Effort:
    """How long one figure may take: ``budget`` in seconds, or a number of iterations."""

    budget: float = 0.5
    iterations: int | None = None
    warmup: int = WARMUP
    least: int = MIN_ITERATIONS
    check: bool = True


@dataclass
class Library:
    """What a library must offer to be measured.

    ``prepare`` gets a NumPy view of a buffer, and returns a function without arguments that runs the
    collective on it, and the array in which the result then lies (the buffer, a part of it, or another one).
    """

    name: str
    rank: int
    ranks: int
    barrier: Callable[[], Any]
    maximum: Callable[[Array], Array]
    """Element by element over all ranks; float64."""
    prepare: Callable[[Problem, Array], tuple[Callable[[], Any], Array]]
    allocate: Callable[[int], Array] = lambda nbytes: np.zeros(nbytes, dtype=np.uint8)
    """That many bytes, as uint8, for the buffers."""
    tolerance: float = 0.0
    """How far right results may be off, relative to the largest of them."""


def parser() -> ArgumentParser:
    """The options that every benchmark program understands."""
    parser = ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--sizes", type=lambda text: [int(s) for s in text.split(",")], default=[4, 1024, 65536]
    )
    timed = ["all_reduce", "reduce_scatter", "all_gather"]
    parser.add_argument("--collective", default=timed[0], choices=timed)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--op", default="sum")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per size")
    parser.add_argument("--iterations", type=int, help="per size, instead of a budget")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="calls before a plan is made")
    parser.add_argument("--least", type=int, default=MIN_ITERATIONS, help="iterations, whatever the budget")
    parser.add_argument("--library", default=None, help="the name to print")
    return parser


def arguments() -> Namespace:
    return parser().parse_args()


# The largest integer up to which a type holds every one.
EXACT = {
    "float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "float8_e4m3fn": 1 << 4,
    "float8_e5m2": 1 << 3, "int64": 1 << 62, "int32": 1 << 30, "int16": (1 << 15) - 1, "int8": (1 << 7) - 1,
    "uint8": (1 << 8) - 1, "bool": 1, "uint16": (1 << 16) - 1, "uint32": 1 << 31, "uint64": 1 << 62,
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def fill(
    rank: int, count: int, iteration: int, dtype: str = "float32", op: str = "sum", ranks: int = 2
) -> Array:
    """Values from which any order of combining gives the same result, in every dtype."""
    seed = np.uint32((rank * 2 + (iteration & 1) + 1) * 2246822519 & 0xFFFFFFFF)
    index = np.arange(1, count + 1, dtype=np.uint32)
    index *= np.uint32(2654435761)
    index += seed
    values = np.right_shift(index, np.uint32(24), out=index)
    exact, factor = EXACT[dtype], 1
    if op == "prod":
        values = values % 2 + 1 if rank < 3 else np.ones_like(values)
    elif op == "avg":  # whose sum divides by the number of ranks
        limit, factor = min(256, exact // ranks**2 + 1), ranks
        values = values % np.uint32(limit)
    elif op == "sum" and dtype != "bool" and rank >= exact:
        values = np.zeros_like(values)
    else:
        terms = min(ranks, exact) if op == "sum" and dtype != "bool" else 1
        limit = min(256, exact // terms + 1)
        values = values % np.uint32(limit) if limit < 256 else values
    typed = values.astype(np.float32).astype(numpy_dtype(dtype), copy=False)
    return np.multiply(typed, factor, dtype=typed.dtype) if factor > 1 else typed


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def expected(rank: int, ranks: int, problem: Problem, iteration: int) -> Array:
    """What must lie in this rank's result; the root is rank 0."""
    count, collective = problem.count, problem.collective
    block = count // ranks
    own = slice(rank * block, (rank + 1) * block)

    def of(other: int) -> Array:
        return fill(other, count, iteration, problem.dtype, problem.op, ranks)

    if collective in ROOT_ONLY and rank != 0:
        return of(0)[:0]
    if collective == "scale":
        return np.multiply(of(rank), 2, dtype=numpy_dtype(problem.dtype))
    if collective in ("broadcast", "scatter"):
        return of(0)[own] if collective == "scatter" else of(0)
    if collective in ("all_gather", "gather"):
        return np.concatenate([of(other)[other * block : (other + 1) * block] for other in range(ranks)])
    if collective == "all_to_all":
        return np.concatenate([of(other)[own] for other in range(ranks)])
    total: Array = reduce(COMBINE[problem.op], (of(other) for other in range(ranks)))
    if problem.op == "avg":
        total = (total / np.float32(ranks)).astype(total.dtype)
    return total[own] if collective == "reduce_scatter" else total


def stride(nbytes: int) -> int:
    return (nbytes + 127) // 128 * 128


def batch_of(nbytes: int) -> int:
    return max(1, min(MAX_BATCH, BATCH_BYTES // stride(nbytes)))


def plan(nbytes: int, call_seconds: float, budget: float, least: int = MIN_ITERATIONS) -> tuple[int, int]:
    batch = max(1, min(batch_of(nbytes), int(BATCH_SECONDS / call_seconds)))
    iterations = int(budget / 2 / (call_seconds * batch))
    return batch, max(least, min(MAX_ITERATIONS, iterations))


class Buffers:
    """The buffers of one problem, each rewritten before it is used; each on cache lines of its own."""

    def __init__(self, library: Library, problem: Problem) -> None:
        dtype = numpy_dtype(problem.dtype)
        unit = dtype.itemsize * (library.ranks if problem.collective in BLOCKWISE else 1)
        if problem.nbytes <= 0 or problem.nbytes % unit:
            raise SystemExit(f"{problem.collective} takes multiples of {unit} bytes, not {problem.nbytes}")
        self.problem, self.rank, self.ranks = problem, library.rank, library.ranks
        self.patterns = [
            fill(self.rank, problem.count, iteration, problem.dtype, problem.op, self.ranks)
            for iteration in range(2)
        ]
        rows, batch = stride(problem.nbytes), batch_of(problem.nbytes)
        self.arena = library.allocate(rows * batch)
        self.arrays = [self.arena[row * rows :][: problem.nbytes].view(dtype) for row in range(batch)]
        self._expected: dict[tuple[str, int], Array] = {}

    def posed_as(self, problem: Problem) -> Buffers | None:
        """The same memory and values for another problem, if it takes the same ones."""
        if replace(problem, collective="") != replace(self.problem, collective=""):
            return None
        other = copy(self)
        other.problem = problem
        return other

    def rewrite(self, batch: int, iteration: int) -> None:
        pattern = self.patterns[iteration & 1]
        for array in self.arrays[:batch]:
            np.copyto(array, pattern)

    def expected(self, iteration: int) -> Array:
        key = self.problem.collective, iteration & 1
        if key not in self._expected:
            self._expected[key] = expected(self.rank, self.ranks, self.problem, iteration & 1)
        return self._expected[key]


class Case:
    """A library's calls on the buffers of one problem."""

    def __init__(self, library: Library, buffers: Buffers) -> None:
        self.library, self.buffers, self.problem = library, buffers, buffers.problem
        prepared = [library.prepare(self.problem, array) for array in buffers.arrays]
        self.calls = [call for call, _ in prepared]
        self.results = [result for _, result in prepared]

    def sample(self, batch: int, iteration: int) -> tuple[float, float]:
        """When this rank began and ended, in seconds of a clock that all ranks share."""
        self.buffers.rewrite(batch, iteration)
        calls = self.calls[:batch]
        self.library.barrier()
        start = perf_counter()
        for call in calls:
            call()
        stop = perf_counter()
        self.library.barrier()
        return start, stop

    def slowest(self, batch: int, iterations: int) -> Array:
        """Seconds of a call in each iteration, the slowest rank's.

        Scaling does not make ranks wait for each other, so of those that share a core each would be timed in
        its turn, as if alone: there it is the time from the first start to the last end.
        """
        times = np.array([self.sample(batch, iteration) for iteration in range(iterations)])
        start, stop = times[:, 0], times[:, 1]
        if self.problem.collective == "scale":
            last_and_first = self.library.maximum(np.concatenate([stop, -start]))
            return (last_and_first[:iterations] + last_and_first[iterations:]) / batch
        return self.library.maximum(stop - start) / batch

    def wrong(self, batch: int, iteration: int) -> int:
        right, results = self.buffers.expected(iteration), self.results[:batch]
        if not self.library.tolerance:
            return sum(int(np.count_nonzero(result != right)) for result in results)
        limit = self.library.tolerance * float(np.abs(right).max(initial=0))
        return sum(int(np.count_nonzero(~(np.abs(result - right) <= limit))) for result in results)


def measure(library: Library, buffers: Buffers, effort: Effort) -> dict[str, Any]:
    """Every rank calls it with the same problem and effort, and gets the same figures."""
    case, problem = Case(library, buffers), buffers.problem
    warm = case.slowest(1, effort.warmup)
    call_seconds = max(1e-9, float(warm[effort.warmup // 2 :].min()))
    batch, iterations = plan(problem.nbytes, call_seconds, effort.budget, effort.least)
    iterations = effort.iterations or iterations
    slowest = case.slowest(batch, iterations)
    wrong = case.wrong(batch, iterations - 1) if effort.check else 0
    p25, median, p75 = (round(float(q) * 1e6, 4) for q in np.quantile(slowest, [0.25, 0.5, 0.75]))
    return {
        "library": library.name,
        "collective": problem.collective,
        "ranks": library.ranks,
        "bytes": problem.nbytes,
        "median_us": median,
        "p25_us": p25,
        "p75_us": p75,
        "iterations": iterations,
        "batch": batch,
        "wrong": int(library.maximum(np.array([float(wrong)]))[0]),
    }


def measure_sizes(library: Library, options: Namespace) -> None:
    """Measures and prints each size; every rank calls it with the same options."""
    library.name = options.library or library.name
    effort = Effort(options.budget, options.iterations, options.warmup, options.least)
    for nbytes in options.sizes:
        problem = Problem(options.collective, nbytes, options.dtype, options.op)
        result = measure(library, Buffers(library, problem), effort)
        if library.rank == 0:
            print(json.dumps(result), flush=True)
