"""One rank of a test on several hosts: joins the job, does what it is told to, and prints how that ended.

rank.py RANK SIZE PLACE SCENARIO TRANSPORT
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import ringreduce

LARGE = 4 << 20  # elements: a second on the way at 1 Gbit/s
PATIENCE = 100.0


def collectives(comm):
    """Every kind of collective once, small and large, with results that are exact."""
    n, rank = comm.size, comm.rank
    for count in (1, 1000, 300_000):
        x = np.full(count, rank + 1, "float32")
        comm.all_reduce(x)
        assert (x == n * (n + 1) // 2).all()
        everybody = comm.all_gather(np.full(count, rank, "int32"))
        assert (everybody.reshape(n, count) == np.arange(n)[:, None]).all()
        own = comm.reduce_scatter(np.repeat(np.arange(n, dtype="float64"), count))
        assert (own == rank * n).all()
        z = np.full(count, rank, "int64")
        comm.broadcast(z, n - 1)
        assert (z == n - 1).all()
    for algorithm in ringreduce.algorithms("all_reduce"):
        x = np.full(100_000, rank, "float32")
        comm.all_reduce(x, algorithm=algorithm.name)
        assert (x == n * (n - 1) // 2).all(), algorithm.name
    y = ringreduce.zeros(100_000)
    y += rank
    comm.all_reduce(y, "max")
    assert (y == n - 1).all()
    got = np.zeros(50_000)
    work = comm.recv(got, (rank - 1) % n, async_op=True)
    comm.send(np.full(50_000, float(rank)), (rank + 1) % n)
    work.wait()
    assert (got == (rank - 1) % n).all()
    with comm.split(rank % 2) as half:
        x = np.ones(1000)
        half.all_reduce(x)
        assert (x == half.size).all()
    comm.barrier()
    return comm.transport


def places(comm):
    """Where this rank is: of all, of those that a split leaves, and of those that are left after that."""
    found = [(comm.hosts, comm.host, comm.local_rank, comm.local_size)]
    with comm.split(0 if comm.rank else 1) as group:
        found.append((group.hosts, group.host, group.local_rank, group.local_size))
    return found


def repeated(call):
    """Does it until something is wrong; what, whose fault, and when."""
    print("begun", flush=True)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            call()
        except ringreduce.Error as error:
            return type(error).__name__, error.rank, time.monotonic()
    return "nothing failed"


def until_failure(comm):
    """Large all-reduces."""
    x = np.ones(LARGE, "float32")
    return repeated(lambda: comm.all_reduce(x, "max"))


def handing_out(comm):
    """Rank 1 sends to all the others, and receives nothing."""
    x = np.ones(LARGE, "float32")
    return repeated(lambda: comm.broadcast(x, 1, algorithm="direct"))


def waiting(comm):
    """As until_failure(), but all wait for rank 0, which does something else."""
    comm.barrier()
    print("begun", flush=True)
    if comm.rank == 0:
        time.sleep(PATIENCE)
    try:
        comm.all_reduce(np.ones(10, "float32"))
    except ringreduce.Error as error:
        return type(error).__name__, error.rank, time.monotonic()
    return "nothing failed"


def links(comm):
    """What was measured when the ranks met."""
    assert comm.links is not None
    x = np.full(300_000, comm.rank, "float32")
    for algorithm in ("ring", "two_level", "synthesised", "auto"):
        x[:] = comm.rank
        comm.all_reduce(x, algorithm=algorithm)
        assert (x == comm.size * (comm.size - 1) // 2).all(), algorithm
    return comm.links.order, float(np.nanmedian(comm.links.latency)), comm.explain(16 << 10).algorithm


def over_each_interface(comm):
    """The bytes that this host sends over each of two interfaces, and those of the messages."""

    def sent():
        return [
            int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text()) for name in ("eth0", "eth1")
        ]

    x = ringreduce.zeros(LARGE, "float32")
    comm.barrier()
    before = sent()
    for _ in range(4):
        comm.all_reduce(x, algorithm="ring")
    comm.barrier()
    return [*np.subtract(sent(), before).tolist(), 4 * x.nbytes]


def unmeasured(comm):
    return comm.links is None


def slow(comm):
    """Rank 0 comes late, and is waited for."""
    x = np.ones(LARGE, "float32")
    for _ in range(2):
        if comm.rank == 0:
            time.sleep(2.5)
        comm.all_reduce(x)
    return float(x[-1])


def last_words(comm):
    """4 MiB of rank 0's, which then leaves at once."""
    x = np.full(1 << 20, 1 - comm.rank, "float32")
    comm.broadcast(x, 0, algorithm="direct")
    return float(x.sum())


def go_on(comm):
    """A failure, and what the survivors do after it."""
    comm.barrier()
    print("begun", flush=True)
    try:
        while True:
            comm.all_reduce(np.ones(1000, "float32"))
    except ringreduce.PeerLost as error:
        lost = error.rank
    with comm.shrink() as fewer:
        x = np.full(100_000, comm.rank, "float32")
        fewer.all_reduce(x)
        return lost, fewer.size, float(x[0])


def main() -> None:
    rank, size, place, scenario = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    with ringreduce.init(rank, size, place, transport=sys.argv[5], timeout=PATIENCE) as comm:
        print("joined", flush=True)
        answer = globals()[scenario](comm)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
