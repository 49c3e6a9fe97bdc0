"""What tests/gpu/test_processes.py runs: ranks that are processes, each of which has the GPU's memory to itself.

The process that starts them does not touch the GPU: nothing of CUDA's survives a fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import numpy as np

import ringreduce
from tests.gpu.gpu_arrays import GpuArray, integers, library, new_stream, pieces_of_memory, wait_for
from tests.gpu.limits import PATIENCE
from tests.processes import metronome, within


def sums(comm, device_of_rank):
    library().call("choose_device", device_of_rank[comm.rank])
    for count in (3, 5000, 70_001):
        for algorithm in ("auto", "ring", "two_shot", "double_tree"):
            x = GpuArray(integers(comm.rank, count))
            comm.all_reduce(x, algorithm=algorithm)
            wanted = sum(integers(rank, count) for rank in range(comm.size))
            assert (x.get(comm) == wanted).all(), (count, algorithm)
    given = GpuArray(np.full(100, comm.rank, "float32"))
    out = comm.all_gather(given, out=GpuArray(np.zeros(100 * comm.size, "float32")))
    assert (out.get(comm) == np.repeat(np.arange(comm.size), 100)).all()
    held = comm.device_memory_held
    with comm.split(comm.rank % 2) as half:
        x = GpuArray(np.ones(1000, "float32"))
        half.all_reduce(x)
        assert (x.get(half) == half.size).all()
    return held


def many(comm):
    """More ranks than kernels serve."""
    for count in (3, 70_001):
        x = GpuArray(integers(comm.rank, count))
        comm.all_reduce(x)
        assert (x.get(comm) == sum(integers(rank, count) for rank in range(comm.size))).all()
    out = comm.all_gather(
        GpuArray(np.full(100, comm.rank, "float32")), out=GpuArray(np.zeros(100 * comm.size, "float32"))
    )
    assert (out.get(comm) == np.repeat(np.arange(comm.size), 100)).all()
    assert comm.device_memory_held == 0


def messages(comm):
    """Around the ring, all at once, with what does not fit on the way."""
    comm.prepare(0)
    counts = (0, 3, 100_000)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    stream = new_stream().handle.value
    came = [GpuArray(np.zeros(count, "float32")) for count in counts]
    how = {"tag": None, "async_op": True, "stream": stream}
    works = [comm.send(GpuArray(integers(comm.rank, count)), to, **how) for count in counts]
    works += [comm.recv(x, source, **how) for x in came]
    for work in works:
        work.wait()
    wait_for(stream)
    for x, count in zip(came, counts, strict=True):
        assert (x.get(comm) == integers(source, count)).all()


def killed(comm):
    x = GpuArray(np.ones(100, "float32"))
    comm.all_reduce(x)
    comm.barrier()
    start = time.monotonic()
    comm.all_reduce(x)
    wait_for(comm.device_stream)
    call = time.monotonic() - start  # more where processes take turns on the GPU
    metronome.start()
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    comm.all_reduce(x, algorithm="ring")
    wait_for(comm.device_stream)  # the kernel ends
    while True:
        try:
            comm.all_reduce(x)
        except ringreduce.PeerLost as error:
            assert error.rank == 1, error
            break
        time.sleep(0.01)
    assert time.monotonic() - start < within(1.5) + 10 * call
    with comm.shrink() as left:
        x = GpuArray(np.ones(100, "float32"))
        left.all_reduce(x)
        assert (x.get(left) == left.size).all()


def slow(comm):
    """Rank 1 is in a call that the others do not make, and has not left when they make another group."""
    given = GpuArray(np.ones(1000, "float32"))
    host = comm.split(0)
    groups = [comm.split(None if comm.rank == 1 else 0) for _ in range(2)]
    comm.all_reduce(given, algorithm="ring")
    wait_for(comm.device_stream)
    before = pieces_of_memory()
    comm.barrier()
    if comm.rank == 1:
        with contextlib.suppress(ringreduce.PeerLost):  # the others may have left before
            comm.all_reduce(given, algorithm="ring")
        wait_for(comm.device_stream)
        host.barrier()
        comm.close()
        host.barrier()
        return
    comm.close()
    for group, made in zip(groups, (1, 1), strict=True):  # memory of its own, then the first group's
        group.all_reduce(given, algorithm="ring")
        wait_for(group.device_stream)
        assert pieces_of_memory() == before + made
        group.close()
        if group is groups[0]:
            host.barrier()
            host.barrier()


def main() -> None:
    what, world = sys.argv[1], int(sys.argv[2])
    if what == "killed":
        try:
            ringreduce.run(killed, world, timeout=PATIENCE)
        except ringreduce.RankFailed as error:
            assert error.rank == 1, error
    elif what in ("many", "messages", "slow"):
        ringreduce.run(globals()[what], world, timeout=PATIENCE)
    else:
        devices = [rank % 2 if what == "two" else 0 for rank in range(world)]
        assert max(ringreduce.run(sums, world, devices, timeout=PATIENCE)) < 16 << 20
    print("well")


if __name__ == "__main__":
    main()
