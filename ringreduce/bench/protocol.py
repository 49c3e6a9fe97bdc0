"""protocol.h in Python, for what is called from Python: same plan, same fill values, same output.

The differences are those that Python forces: the barrier is the library's own, because a spinning one in
Python would keep the core from the others, and buffers are rewritten from a pattern made beforehand.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

MAX_ITERATIONS = 300
MIN_ITERATIONS = 7
MAX_BATCH = 100
BATCH_BYTES = 256 << 10
BATCH_SECONDS = 1e-3
WARMUP = 8

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Library:
    """What a library must offer to be measured.

    ``prepare`` gets a NumPy view of a buffer, and returns a function without arguments that runs the
    collective on it, and the array in which the result then lies (the buffer itself, or a part of it).
    """

    name: str
    rank: int
    ranks: int
    barrier: Callable[[], None]
    maximum: Callable[[Array], Array]
    """Element by element over all ranks; float64."""
    prepare: Callable[[str, Array], tuple[Callable[[], Any], Array]]


def arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--sizes", type=lambda text: [int(s) for s in text.split(",")], default=[4, 1024, 65536]
    )
    parser.add_argument(
        "--collective", default="all_reduce", choices=["all_reduce", "reduce_scatter", "all_gather"]
    )
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per size")
    parser.add_argument("--library", default=None, help="the name to print")
    return parser.parse_args()


def fill(rank: int, count: int, iteration: int) -> Array:
    seed = np.uint32((rank * 2 + (iteration & 1) + 1) * 2246822519 & 0xFFFFFFFF)
    index = np.arange(1, count + 1, dtype=np.uint32)
    return ((index * np.uint32(2654435761) + seed) >> np.uint32(24)).astype(np.float32)


def expected(library: Library, collective: str, count: int, iteration: int) -> Array:
    fills = [fill(rank, count, iteration) for rank in range(library.ranks)]
    block = count // library.ranks
    if collective == "all_gather":
        return np.concatenate([values[r * block : (r + 1) * block] for r, values in enumerate(fills)])
    total: Array = np.sum(fills, axis=0, dtype=np.float32)
    return total if collective == "all_reduce" else total[library.rank * block : (library.rank + 1) * block]


def stride(nbytes: int) -> int:
    return (nbytes + 127) // 128 * 128


def batch_of(nbytes: int) -> int:
    return max(1, min(MAX_BATCH, BATCH_BYTES // stride(nbytes)))


def plan(nbytes: int, call_seconds: float, budget: float) -> tuple[int, int]:
    batch = max(1, min(batch_of(nbytes), int(BATCH_SECONDS / call_seconds)))
    iterations = int(budget / 2 / (call_seconds * batch))
    return batch, max(MIN_ITERATIONS, min(MAX_ITERATIONS, iterations))


class Case:
    """The buffers of one size, and the calls on them."""

    def __init__(self, library: Library, collective: str, nbytes: int) -> None:
        unit = 4 if collective == "all_reduce" else 4 * library.ranks
        if nbytes <= 0 or nbytes % unit:
            raise SystemExit(f"--sizes takes multiples of {unit} bytes, not {nbytes}")
        self.library, self.collective, self.count = library, collective, nbytes // 4
        self.patterns = [fill(library.rank, self.count, iteration) for iteration in range(2)]
        arena = np.zeros(stride(nbytes) // 4 * batch_of(nbytes), dtype=np.float32)
        self.buffers = [row[: self.count] for row in arena.reshape(batch_of(nbytes), -1)]
        prepared = [library.prepare(collective, buffer) for buffer in self.buffers]
        self.calls = [call for call, _ in prepared]
        self.results = [result for _, result in prepared]

    def sample(self, batch: int, iteration: int) -> float:
        pattern = self.patterns[iteration & 1]
        for buffer in self.buffers[:batch]:
            np.copyto(buffer, pattern)
        calls = self.calls[:batch]
        self.library.barrier()
        start = perf_counter()
        for call in calls:
            call()
        seconds = perf_counter() - start
        self.library.barrier()
        return seconds / batch

    def wrong(self, batch: int, iteration: int) -> int:
        right = expected(self.library, self.collective, self.count, iteration)
        return sum(int(np.count_nonzero(result != right)) for result in self.results[:batch])


def measure(library: Library, collective: str, nbytes: int, budget: float) -> dict[str, Any]:
    case = Case(library, collective, nbytes)
    warm = library.maximum(np.array([case.sample(1, i) for i in range(WARMUP)]))
    batch, iterations = plan(nbytes, max(1e-9, float(warm[WARMUP // 2 :].min())), budget)
    slowest = library.maximum(np.array([case.sample(batch, i) for i in range(iterations)]))
    wrong = library.maximum(np.array([float(case.wrong(batch, iterations - 1))]))
    p25, median, p75 = (round(float(q) * 1e6, 4) for q in np.quantile(slowest, [0.25, 0.5, 0.75]))
    return {
        "library": library.name,
        "collective": collective,
        "ranks": library.ranks,
        "bytes": nbytes,
        "median_us": median,
        "p25_us": p25,
        "p75_us": p75,
        "iterations": iterations,
        "batch": batch,
        "wrong": int(wrong[0]),
    }


def measure_sizes(library: Library, options: Namespace) -> None:
    """Measures and prints each size; every rank calls it with the same options."""
    library.name = options.library or library.name
    for nbytes in options.sizes:
        result = measure(library, options.collective, nbytes, options.budget)
        if library.rank == 0:
            print(json.dumps(result), flush=True)
