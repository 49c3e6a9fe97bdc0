"""Random collectives of ranks that share a GPU, compared bit for bit, with ranks that leave or never come.

    PYTHONPATH=. python3 -m tests.gpu.random_calls [--seconds 90] [--seed N]

Each group makes some calls. Then one rank makes no more, or another call, and all ranks must raise in time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time

import numpy as np

import ringreduce

from .gpu_arrays import GpuArray, on_gpu, wait_for

TIMEOUT = 1.0  # seconds, of a group whose rank does not come
DTYPES = ["float32", "float64", "int32", "uint8"]
ALGORITHMS = ["auto", "auto", "auto", "ring", "two_shot", "one_shot"]


def values(seed, rank, count, dtype):
    return np.random.default_rng([seed, rank]).integers(0, 5, count).astype(dtype)


def call(comm, plan):
    """One all-reduce or all-gather of all ranks, and its check."""
    seed, collective, dtype, count, algorithm = plan
    given = [values(seed, rank, count, dtype) for rank in range(comm.size)]
    x = GpuArray(given[comm.rank])
    if collective == "all_reduce":
        comm.all_reduce(x, algorithm=algorithm)
        wanted, out = sum(given[1:], given[0].copy()), x
    else:
        out = GpuArray(np.zeros(count * comm.size, dtype))
        comm.all_gather(x, out=out)
        wanted = np.concatenate(given)
    assert (out.get(comm) == wanted).all(), f"wrong result: {plan}, rank {comm.rank}"


def ends(comm, how):
    """Rank 0 does not come, or calls something else: every rank raises."""
    x = GpuArray(np.ones(1000, "float32"))
    if comm.rank == 0 and how == "leaves":
        return
    end = time.monotonic() + 10 * TIMEOUT
    try:
        while time.monotonic() < end:
            comm.all_reduce(x, op="max" if comm.rank == 0 else "sum")
            wait_for(comm.device_stream)
    except ringreduce.Error:
        return
    raise AssertionError(f"rank {comm.rank} has not noticed that rank 0 {how}")


def group(comm, plans, how):
    for plan in plans:
        call(comm, plan)
    if comm.size > 1 and how:
        ends(comm, how)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    draw, end, calls = random.Random(options.seed), time.monotonic() + options.seconds, 0
    for number in itertools.count(1):
        plans = [
            (
                draw.randrange(1 << 30),
                draw.choice(["all_reduce", "all_reduce", "all_gather"]),
                draw.choice(DTYPES),
                draw.choice([1, 3, 1000, 16_385, draw.randrange(1, 300_000)]),
                draw.choice(ALGORITHMS),
            )
            for _ in range(draw.randrange(1, 20))
        ]
        world, how = draw.choice([1, 2, 3, 4]), draw.choice(["", "leaves", "calls something else"])
        on_gpu(group, world, plans, how, timeout=TIMEOUT if how == "leaves" else 10 * TIMEOUT)
        calls += len(plans)
        if time.monotonic() > end:
            print(f"{calls} calls of {number} groups are well")
            return
        if number % 20 == 0:
            print(f"{calls} calls of {number} groups", flush=True)


if __name__ == "__main__":
    sys.exit(main())
