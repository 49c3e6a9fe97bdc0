"""Times all-reduces of many sizes in turn and of one size at a time, from Python or torch: for two_builds.py --in-turn.

Both orders make the same calls, by turns, and each takes the next place in memory that has room for a round.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import ringreduce

PARTS, REPETITIONS = 3, 3  # as in cpp/collectives.cpp
Call = Callable[[], Any]


def caller(comm: ringreduce.Communicator, front: str, store: str) -> Callable[[np.ndarray], Call]:
    if front == "python":
        return lambda array: partial(comm.all_reduce, array)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("ringreduce", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    return lambda array: partial(dist.all_reduce, torch.from_numpy(array))


def timed(calls: Sequence[Call]) -> float:
    start = perf_counter()
    for call in calls:
        call()
    return 1e6 * (perf_counter() - start) / len(calls)


def measure(prepare: Callable[[np.ndarray], Call], sizes: list[int], together: int) -> dict[str, float]:
    """Returns the mean over kinds of calls of the medians of their times.

    Calls of one size also take another array each time: 200 tensors do not stay in the first cache.
    """
    arena = np.zeros(sum(size + -size % 64 for size in sizes), dtype=np.uint8)
    at = 0

    def calls_of(sizes: list[int]) -> list[Call]:
        nonlocal at
        made = []
        for size in sizes:
            at = 0 if at + size > arena.size else at
            made.append(prepare(arena[at : at + size].view(np.float32)))
            at += size + -size % 64
        return made

    in_turn: list[list[float]] = [[] for _ in sizes[::together]]
    alone: list[list[float]] = [[] for _ in sizes]
    for _ in range(PARTS):
        calls = calls_of(sizes)
        for _ in range(REPETITIONS * together):
            for number, times in enumerate(in_turn):
                times.append(timed(calls[number * together :][:together]))
        for size, times in zip(sizes, alone, strict=True):
            same = calls_of([size] * ((1 + REPETITIONS) * together))
            taken = [timed(same[k * together :][:together]) for k in range(1 + REPETITIONS)]
            times += taken[1:]  # the first is the first of its size
    return {
        name: statistics.mean(map(statistics.median, times))
        for name, times in (("alone_us", alone), ("in_turn_us", in_turn))
    }


def rank_main(comm: ringreduce.Communicator, options: Namespace, store: str) -> None:
    gc.disable()
    prepare = caller(comm, options.front, store)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    found = measure(prepare, options.sizes, options.in_turn)
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("front", choices=["python", "torch"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True)
    parser.add_argument("--in-turn", type=int, required=True, help="calls that are timed together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ringreduce.run(rank_main, options.ranks, options, f"{folder}/store")


if __name__ == "__main__":
    main()
