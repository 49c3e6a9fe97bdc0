"""A program for `ringreduce run --restarts`."""

import contextlib
import os
import signal
import sys

import ringreduce
from tests.training.elastic.ranks import described, go_on_until


def main() -> None:
    what, victims = sys.argv[1], [int(victim) for victim in sys.argv[2].split(",")]
    newcomer = bool(os.environ.get("RINGREDUCE_NEWCOMER"))
    if what == "die early" and not newcomer:
        if int(os.environ["RANK"]) in victims:
            print("dies\n", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        victims = []
    comm = ringreduce.join(timeout=60) if newcomer and what != "init again" else ringreduce.init(timeout=60)
    size = int(os.environ["WORLD_SIZE"])
    if not newcomer:
        if comm.rank in victims:
            with contextlib.suppress(ringreduce.PeerLost):  # another victim was quicker
                comm.barrier()
            print("dies\n", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if what != "die early":
            try:
                while True:
                    comm.barrier()
            except ringreduce.PeerLost:
                comm = comm.shrink()
    if what == "go on without":
        rank, size, total = described(comm)
    else:
        rank, size, total = go_on_until(comm, size)
    print(f"rank {rank} of {size}: {total}\n", end="", flush=True)


main()
