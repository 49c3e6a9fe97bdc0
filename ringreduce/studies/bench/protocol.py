"""The measuring protocol for libraries that are called from Python.

It follows the rules in bench/peers/protocol.h, with the same plan, fill values and output. Python requires two
differences. The barrier is the library's own, because a barrier that spins in Python would keep the core from other
ranks. And buffers are rewritten from a pattern that is computed in advance.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from ringreduce.studies.bench.problem import (
        BLOCKWISE,
        EXACT,
        MESSAGES,
        Array,
        Problem,
        expected,
        fill,
        numpy_dtype,
        partner,
    )
else:
    from problem import BLOCKWISE, EXACT, MESSAGES, Array, Problem, expected, fill, numpy_dtype, partner

# Includes what users of the protocol need of problem.py.
__all__ = [
    "BLOCKWISE", "EXACT", "Array", "Buffers", "Case", "Effort", "Library", "Problem", "fill", "measure",
    "measure_sizes", "numpy_dtype", "plan",
]  # fmt: skip

MAX_ITERATIONS = 300
MIN_ITERATIONS = 7
MAX_BATCH = 100
BATCH_BYTES = 256 << 10
BATCH_SECONDS = 1e-3
WARMUP = 8


@dataclass(frozen=True)
class Effort:
    """The effort for one figure: ``budget`` in seconds, or a number of iterations.

    ``batch`` is the number of calls that are timed together. None leaves it to the protocol.
    """

    budget: float = 0.5
    iterations: int | None = None
    warmup: int = WARMUP
    least: int = MIN_ITERATIONS
    check: bool = True
    batch: int | None = None


@dataclass
class Library:
    """The interface that a library must provide to be measured.

    ``prepare`` takes a NumPy view of a buffer. It returns a function without arguments that runs the collective on the
    buffer, and the array that then holds the result (the buffer, a part of it, or another array).
    """

    name: str
    rank: int
    ranks: int
    barrier: Callable[[], Any]
    maximum: Callable[[Array], Array]
    """Returns the elementwise maximum over all ranks, as float64."""
    prepare: Callable[[Problem, Array], tuple[Callable[[], Any], Array]]
    allocate: Callable[[int], Array] = lambda nbytes: np.zeros(nbytes, dtype=np.uint8)
    """Allocates that number of bytes for the buffers, as uint8."""
    tolerance: float = 0.0
    """The error that correct results may have, relative to the largest of them."""


def parser() -> ArgumentParser:
    """Returns a parser for the options that every benchmark program accepts."""
    parser = ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--sizes", type=lambda text: [int(s) for s in text.split(",")], default=[4, 1024, 65536]
    )
    parser.add_argument("--collective", default="all_reduce")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--op", default="sum")
    parser.add_argument("--root", type=int, default=0)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per size")
    parser.add_argument("--iterations", type=int, help="iterations per size, instead of a budget")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="calls before the measurement is planned")
    parser.add_argument(
        "--least", type=int, default=MIN_ITERATIONS, help="least iterations, whatever the budget"
    )
    parser.add_argument(
        "--batch", type=int, help="calls that are timed together (the protocol chooses the number)"
    )
    parser.add_argument("--library", default=None, help="name to print")
    return parser


def arguments() -> Namespace:
    return parser().parse_args()


def stride(nbytes: int) -> int:
    return (nbytes + 127) // 128 * 128


def batch_of(nbytes: int) -> int:
    return max(1, min(MAX_BATCH, BATCH_BYTES // max(stride(nbytes), 1)))


def plan(nbytes: int, call_seconds: float, budget: float, least: int = MIN_ITERATIONS) -> tuple[int, int]:
    batch = max(1, min(batch_of(nbytes), int(BATCH_SECONDS / call_seconds)))
    iterations = int(budget / 2 / (call_seconds * batch))
    return batch, max(least, min(MAX_ITERATIONS, iterations))


class Buffers:
    """The buffers of one problem. Each is rewritten before it is used, and has its own cache lines.

    Args:
        library: Allocates them.
        problem: The problem.
        turns: The number of buffers that are used in turn, so that caches have lost one when its turn comes.
    """

    def __init__(self, library: Library, problem: Problem, turns: int = 1) -> None:
        dtype = numpy_dtype(problem.dtype)
        unit = dtype.itemsize * (library.ranks if problem.collective in BLOCKWISE else 1)
        if problem.nbytes % unit or (problem.nbytes <= 0 and problem.collective != "barrier"):
            raise SystemExit(f"{problem.collective} takes multiples of {unit} bytes, not {problem.nbytes}")
        self.problem, self.rank, self.ranks = problem, library.rank, library.ranks
        self.patterns = [
            fill(self.rank, problem.count, iteration, problem.dtype, problem.op, self.ranks)
            for iteration in range(2)
        ]
        self.turns = turns
        rows, batch = stride(problem.nbytes), max(batch_of(problem.nbytes), turns)
        self.arena = library.allocate(rows * batch)
        self.arrays = [self.arena[row * rows :][: problem.nbytes].view(dtype) for row in range(batch)]
        self._expected: dict[tuple[str, int], Array] = {}

    def posed_as(self, problem: Problem) -> Buffers | None:
        """Returns the same memory and values for another problem, or None if it needs other ones."""
        if replace(problem, collective="") != replace(self.problem, collective=""):
            return None
        other = copy(self)
        other.problem = problem
        return other

    def rewrite(self, batch: int, iteration: int) -> None:
        """Rewrites so many buffers, from the one whose turn the iteration is."""
        pattern, first = self.patterns[iteration & 1], iteration % self.turns
        for array in self.arrays[first : first + batch]:
            np.copyto(array, pattern)

    def expected(self, iteration: int) -> Array:
        key = self.problem.collective, iteration & 1
        if key not in self._expected:
            self._expected[key] = expected(self.rank, self.ranks, self.problem, iteration & 1)
        return self._expected[key]


class Case:
    """The calls of a library on the buffers of one problem."""

    def __init__(self, library: Library, buffers: Buffers) -> None:
        self.library, self.buffers, self.problem = library, buffers, buffers.problem
        prepared = [library.prepare(self.problem, array) for array in buffers.arrays]
        self.calls = [call for call, _ in prepared]
        self.results = [result for _, result in prepared]

    def sample(self, batch: int, iteration: int) -> tuple[float, float]:
        """Returns when this rank began and ended, in seconds of a clock that all ranks share."""
        self.buffers.rewrite(batch, iteration)
        calls = self.calls[:batch]
        self.library.barrier()
        start = perf_counter()
        for call in calls:
            call()
        stop = perf_counter()
        self.library.barrier()
        return start, stop

    def samples(self, batch: int, iterations: int) -> Array:
        """Returns when this rank began and ended each iteration, as two rows."""
        return np.array([self.sample(batch, iteration) for iteration in range(iterations)]).T

    def slowest(self, batch: int, samples: Array) -> Array:
        """Returns the seconds of a call on the slowest rank, for each sample.

        When the ranks scale their buffers, they do not wait for each other. Ranks that share a core would be timed one
        after the other, as if each were alone. The time is therefore that from the first start to the last end.
        """
        start, stop = samples
        if self.problem.collective == "scale":
            last, first = self.library.maximum(np.concatenate([stop, -start])).reshape(2, -1)
            return (last + first) / batch
        return self.library.maximum(stop - start) / batch

    def averages(self, batch: int, samples: Array) -> Array:
        """Returns the seconds of a call, averaged over the samples, for every rank of the call."""
        library, slots = self.library, np.full(self.library.ranks, -1.0)
        idle = self.problem.collective in MESSAGES
        if not idle or partner(self.problem.collective, library.rank, library.ranks) is not None:
            slots[library.rank] = float(np.mean(samples[1] - samples[0])) / batch
        everybody = library.maximum(slots)
        return everybody[everybody >= 0]

    def wrong(self, batch: int, iteration: int) -> int:
        first = iteration % self.buffers.turns
        right, results = self.buffers.expected(iteration), self.results[first : first + batch]
        if not self.library.tolerance:
            return sum(int(np.count_nonzero(result != right)) for result in results)
        limit = self.library.tolerance * float(np.abs(right).max(initial=0))
        return sum(int(np.count_nonzero(~(np.abs(result - right) <= limit))) for result in results)


def measure(library: Library, buffers: Buffers, effort: Effort) -> dict[str, Any]:
    """Measures a library. Every rank must call it with the same problem and effort, and gets the same figures.

    The median and the quartiles are those of the slowest rank's times. As in OSU's benchmarks, ``avg_us``, ``min_us``
    and ``max_us`` are taken over the averages of the ranks.
    """
    case, problem = Case(library, buffers), buffers.problem
    warm = case.slowest(1, case.samples(1, effort.warmup))
    call_seconds = max(1e-9, float(warm[effort.warmup // 2 :].min()))
    batch, iterations = plan(problem.nbytes, call_seconds, effort.budget, effort.least)
    if effort.batch is not None:
        batch = min(effort.batch, len(case.calls))
        iterations = min(MAX_ITERATIONS, max(effort.least, int(effort.budget / 2 / (call_seconds * batch))))
    iterations = effort.iterations or iterations
    samples = case.samples(batch, iterations)
    wrong = case.wrong(batch, iterations - 1) if effort.check else 0
    scale = 1e6 / MESSAGES.get(problem.collective, 1)
    quartiles = np.quantile(case.slowest(batch, samples), [0.25, 0.5, 0.75])
    p25, median, p75 = (round(float(q) * scale, 4) for q in quartiles)
    own = case.averages(batch, samples) * scale
    return {
        "library": library.name,
        "collective": problem.collective,
        "ranks": library.ranks,
        "bytes": problem.nbytes,
        "median_us": median,
        "p25_us": p25,
        "p75_us": p75,
        "avg_us": round(float(own.mean()), 4),
        "min_us": round(float(own.min()), 4),
        "max_us": round(float(own.max()), 4),
        "iterations": iterations,
        "batch": batch,
        "wrong": int(library.maximum(np.array([float(wrong)]))[0]),
    }


def measure_sizes(library: Library, options: Namespace) -> None:
    """Measures and prints each size. Every rank must call it with the same options."""
    library.name = options.library or library.name
    effort = Effort(options.budget, options.iterations, options.warmup, options.least, batch=options.batch)
    for nbytes in options.sizes:
        problem = Problem(options.collective, nbytes, options.dtype, options.op, root=options.root)
        result = measure(library, Buffers(library, problem), effort)
        if library.rank == 0:
            print(json.dumps(result), flush=True)
