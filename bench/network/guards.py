"""Measures the cost of guarding frames: core time and elapsed time of all-reduces of two ranks over loopback.

    python3 -m bench.network.guards

The core time matters if the cores are busy. It hardly depends on other programs on the machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from argparse import ArgumentParser

import numpy as np

import ringreduce
from bench.network.contestants import GUARDS
from ringreduce.text import byte_count, names

SECONDS = 0.4  # approximate time per size, guard and launch, on a quiet machine
BYTES_PER_SECOND, LATENCY = 1e9, 5e-5


def measure(comm, nbytes: int) -> tuple[float, float, float]:
    """Returns the microseconds of an all-reduce: in the program, in the system, and elapsed."""
    x = np.ones(nbytes // 4, "float32")
    repetitions = max(4, int(SECONDS / (LATENCY + nbytes / BYTES_PER_SECOND)))
    comm.all_reduce(x, "max")
    comm.barrier()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(repetitions):
        comm.all_reduce(x, "max")
    ended, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    spent = (after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, ended - began)
    return tuple(1e6 * seconds / repetitions for seconds in spent)  # type: ignore[return-value]


def launch(nbytes: int, guard: str) -> list[float]:
    for variable in {name for variables in GUARDS.values() for name in variables}:
        os.environ.pop(variable, None)
    os.environ.update(GUARDS[guard])
    ranks = ringreduce.run(measure, 2, nbytes, transport="tcp", timeout=300)
    return [statistics.mean(times) for times in zip(*ranks, strict=True)]


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=names, default=names("1K,64K,1M,32M"))
    parser.add_argument("--guards", type=names, default=["nothing", "checksums", "tls"])
    parser.add_argument("--launches", type=int, default=7)
    options = parser.parse_args()
    print("| us per all-reduce | guard | program | system | both | from | on the clock |")
    print("|--:|:--|--:|--:|--:|--:|--:|")
    for size in options.sizes:
        found: dict[str, list[list[float]]] = {guard: [] for guard in options.guards}
        for _ in range(options.launches):
            for guard in options.guards:
                found[guard].append(launch(byte_count(size), guard))
        for guard, rows in found.items():
            program, system, clock = (statistics.median(column) for column in zip(*rows, strict=True))
            both = [row[0] + row[1] for row in rows]
            cells = [program, system, statistics.median(both), min(both), clock]
            print(f"| {size} | {guard} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
