"""A rank of tensorflow_calls.py: times all-reduces inside tf.function, and prints a line for each size."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import ringreduce
from bench.frameworks.rank import batch_of, figures


def ours(comm: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    import ringreduce.tensorflow as rt

    return tf.function(lambda x: rt.all_reduce(x, comm=comm))


def theirs(rank: int, workers: list[str]) -> Callable[[Any], Any]:
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    how = tf.distribute.experimental
    ring = how.CommunicationOptions(implementation=how.CommunicationImplementation.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    def call(x: Any) -> Any:
        # The identity, which copies nothing, is on a device; an argument of a function is not.
        return tf.distribute.get_replica_context().all_reduce("sum", tf.identity(x))

    return tf.function(lambda x: strategy.run(call, args=(x,)))


def measured(comm: Any, program: Callable[[Any], Any], nbytes: int, budget: float) -> dict[str, Any]:
    import tensorflow as tf

    batch = batch_of(nbytes)
    x = tf.fill([nbytes // 4], np.float32(comm.rank + 1))
    wrong = int(np.count_nonzero(program(x).numpy() != comm.size * (comm.size + 1) // 2))
    rewrite = tf.function(lambda x: x + 1 - 1)

    def sample() -> float:
        fresh = rewrite(x)
        comm.barrier()
        began = perf_counter()
        for _ in range(batch):
            program(fresh)
        took = perf_counter() - began
        comm.barrier()
        return took / batch

    found = figures(sample, batch, budget, lambda values: comm.all_reduce(values.copy(), "max"))
    return {"kind": "call", "bytes": nbytes, **found, "wrong": wrong}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["ringreduce", "tf.distribute"])
    parser.add_argument("--workers", type=lambda text: text.split(","))
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per figure")
    options = parser.parse_args()
    comm = ringreduce.init()
    program = ours(comm) if options.library == "ringreduce" else theirs(comm.rank, options.workers)
    for nbytes in options.sizes:
        row = measured(comm, program, nbytes, options.budget)
        if comm.rank == 0:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
