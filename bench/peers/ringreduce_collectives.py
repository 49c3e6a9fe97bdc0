"""Times our collectives, called from Python, by the rules of protocol.py. Starts its own ranks."""

from __future__ import annotations

import os
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import ringreduce
from ringreduce.bench.ours import ours
from ringreduce.bench.protocol import measure_sizes, parser


def rank_main(comm: ringreduce.Communicator, options: Namespace) -> None:
    library = ours(comm, options.algorithm, options.memory == "shared")
    library.name = "ringreduce-threads" if options.threads else "ringreduce-python"
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})  # as the C++ program and the MPIs bind theirs
    measure_sizes(library, options)


def on_threads(options: Namespace) -> None:
    with ThreadPoolExecutor(options.ranks) as pool:
        list(pool.map(rank_main, ringreduce.local_group(options.ranks), [options] * options.ranks))


def main() -> None:
    options = parser()
    options.add_argument("--threads", action="store_true", help="ranks are threads of one process")
    options.add_argument("--memory", choices=["ordinary", "shared"], default="ordinary")
    options.add_argument("--algorithm", default="auto")
    chosen = options.parse_args()
    on_threads(chosen) if chosen.threads else ringreduce.run(rank_main, chosen.ranks, chosen)


if __name__ == "__main__":
    main()
