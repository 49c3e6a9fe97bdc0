"""What tests/gpu/test_copy_engine.py runs, with ranks that are threads or processes: copies between registered arrays.

The process that starts processes does not touch the GPU: nothing of CUDA's survives a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import ringreduce
from tests.gpu.gpu_arrays import GpuArray, View, failure_of, library, new_stream, wait_for
from tests.gpu.limits import PATIENCE

COUNTS = (1, 1000, 70_001)  # elements of a block
LONG = 100_000  # a broadcast that goes in shares
GUARD = 64  # elements behind an array, which nobody may touch


def integers(rank, count, seed=0):
    return np.random.default_rng((rank, seed)).integers(0, 9, count).astype("float32")


class Place:
    """An array with others around it, in memory that all ranks register."""

    def __init__(self, comm, count, offset=16):
        self.whole = GpuArray(np.full(offset + count + GUARD, -1, "float32"))
        self.x = View(self.whole, count, offset=4 * offset)
        comm.register(self.whole)

    def is_intact(self, comm, offset=16):
        around = np.delete(self.whole.get(comm), np.s_[offset : offset + self.x.shape[0]])
        return (around == -1).all()


def is_copied(comm, call, *args, **how):
    """Whether copy engines ran the collective."""
    comm.reset_statistics()
    call(*args, **how)
    wait_for(comm.device_stream)
    [algorithm] = [kind.algorithm for kind in comm.statistics().calls if kind.calls]
    return algorithm == "copy_engine"


def check(array, comm, wanted):
    assert (array.get(comm) == wanted).all(), (array.get(comm), wanted)


def collectives(comm):
    """All that only copy, several times, with other values."""
    world, rank = comm.size, comm.rank
    for count in COUNTS:
        given = [integers(r, count * world, count) for r in range(world)]
        part = [np.split(one, world) for one in given]
        block, whole = Place(comm, count), Place(comm, count * world)
        out = GpuArray(np.zeros(count * world, "float32"))
        for root in range(world):
            block.x.put(part[rank][0])
            whole.x.put(given[rank])
            mine = out if rank == root else None
            assert is_copied(comm, comm.all_gather, block.x, out=out)
            check(out, comm, np.concatenate([one[0] for one in part]))
            out.put(np.zeros(count * world))
            assert is_copied(comm, comm.gather, block.x, root, out=mine)
            check(out, comm, np.concatenate([one[0] for one in part]) if rank == root else 0)
            assert is_copied(comm, comm.all_to_all, whole.x, out=out)
            check(out, comm, np.concatenate([one[rank] for one in part]))
            assert is_copied(comm, comm.broadcast, whole.x, root)
            check(whole.x, comm, given[root])
        in_place(comm, whole, part)
        assert block.is_intact(comm) and whole.is_intact(comm)
        for place in (block, whole):
            comm.deregister(place.whole)


def in_place(comm, whole, part):
    """As FSDP gathers: each rank's block lies in the output."""
    own = View(whole.x, part[0][0].size, offset=4 * comm.rank * part[0][0].size)
    for turn in range(comm.size):
        whole.x.put(np.zeros(whole.x.shape))
        own.put(part[comm.rank][turn])
        assert is_copied(comm, comm.all_gather, own, out=whole.x)
        check(whole.x, comm, np.concatenate([one[turn] for one in part]))


def broadcasts(comm):
    """Long ones go in shares, which the ranks take from each other."""
    place = Place(comm, LONG)
    for count in (LONG, LONG - 1, 65_600):
        x = View(place.x, count)
        for root in range(comm.size):
            x.put(integers(comm.rank, count, root))
            assert is_copied(comm, comm.broadcast, x, root)
            check(x, comm, integers(root, count, root))
    assert place.is_intact(comm)


def others(comm):
    """What copy engines do not serve goes to kernels, with the same results."""
    world, rank = comm.size, comm.rank
    count = 5000
    place = Place(comm, count * world)
    block = View(place.x, count)
    out, loose = (GpuArray(np.zeros(count * world, "float32")) for _ in range(2))
    blocks = [integers(r, count) for r in range(world)]

    def refill():
        block.put(blocks[rank])
        loose.put(np.concatenate([blocks[rank]] * world))

    def summed():
        comm.all_reduce(block)

    def uneven():
        counts = range(10, 10 + world)
        comm.all_gather(View(block, counts[rank]), out=View(out, sum(counts)), counts=counts)

    calls = {
        "not registered": lambda: comm.all_gather(View(loose, count), out=out),
        "a sum": summed,
        "uneven": uneven,
        "a scatter": lambda: comm.scatter(place.x if rank == 0 else None, 0, out=View(out, count)),
        "in place": lambda: comm.all_to_all(place.x, out=place.x),
        "named": lambda: comm.all_gather(block, out=out, algorithm="direct"),
    }
    for name, call in calls.items():
        refill()
        assert not is_copied(comm, call), name
    check(out, comm, np.concatenate(blocks))
    comm.deregister(place.whole)
    refill()
    assert not is_copied(comm, comm.all_gather, block, out=out)
    check(out, comm, np.concatenate(blocks))


def captured(comm):
    """A graph's replays would repeat the numbers by which streams meet, so kernels take the call."""
    cuda, stream, count = library(), new_stream(), 5000
    place, out = Place(comm, count), GpuArray(np.zeros(count * comm.size, "float32"))
    comm.barrier()
    with cuda.captured(stream) as graph:
        comm.all_gather(place.x, out=out, stream=stream.handle.value)
    for seed in range(3):
        place.x.put(integers(comm.rank, count, seed))
        graph.launch(stream)
        cuda.synchronize(stream)
        check(out, comm, np.concatenate([integers(r, count, seed) for r in range(comm.size)]))
        assert is_copied(comm, comm.all_gather, place.x, out=out)
    comm.barrier()
    graph.close()


def beside(comm):
    """On the group's own stream, many in flight, between kernels of the same rank."""
    count, calls = 3000, 20
    place = Place(comm, count)
    outs = [GpuArray(np.zeros(count * comm.size, "float32")) for _ in range(calls)]
    for number, out in enumerate(outs):
        place.x.put(integers(comm.rank, count, number))
        total = GpuArray(np.ones(10, "float32"))
        comm.all_gather(place.x, out=out, async_op=True)
        comm.all_reduce(total, async_op=True).wait()
        wait_for(comm.device_stream)  # before the array is written again
        check(total, comm, comm.size)
    for number, out in enumerate(outs):
        check(out, comm, np.concatenate([integers(r, count, number) for r in range(comm.size)]))


def late(comm):
    """Nobody reads an array before it is written, or writes one that is still read."""
    count = 20_000
    place, out = Place(comm, count), GpuArray(np.zeros(count * comm.size, "float32"))
    stream = new_stream()
    for turn in range(6):
        if turn % comm.size == comm.rank:
            time.sleep(0.02)
        data = np.full(count, comm.size * turn + comm.rank, "float32")
        library().move(place.x.address, data.ctypes.data, data.nbytes, stream)  # on the call's stream
        comm.all_gather(place.x, out=out, stream=stream.handle.value)
        library().synchronize(stream)
        wanted = np.repeat(comm.size * turn + np.arange(comm.size), count)
        assert (out.values() == wanted).all()


def misplaced(comm):
    """Arrays at different places of what was registered: all ranks hear of it, whoever waits."""
    count = 1000
    place, out = Place(comm, count), GpuArray(np.zeros((count - 1) * comm.size, "float32"))
    x = View(place.x, count - 1, offset=4 if comm.rank == 1 else 0)
    error = failure_of(lambda: comm.all_gather(x, out=out))
    assert isinstance(error, ringreduce.MismatchError), error
    assert "bytes behind the begin of registered memory) by copy_engine" in str(error), error
    wait_for(comm.device_stream)


def different(comm):
    """A rank that does something else, which kernels run."""
    count = 20_000
    place, out = Place(comm, count), GpuArray(np.zeros(count * comm.size, "float32"))

    def call():
        if comm.rank == 1:
            comm.all_reduce(out)
        else:
            comm.all_gather(place.x, out=out)

    error = failure_of(call)
    assert isinstance(error, ringreduce.MismatchError), error
    wait_for(comm.device_stream)


def unregistered(comm):
    """An array that one rank has not registered."""
    count = 20_000
    place, out = Place(comm, count), GpuArray(np.zeros(count * comm.size, "float32"))
    x = GpuArray(np.zeros(count, "float32")) if comm.rank == 1 else place.x
    error = failure_of(lambda: comm.all_gather(x, out=out))
    assert isinstance(error, ringreduce.MismatchError), error
    wait_for(comm.device_stream)


def absent(comm):
    """A rank that does not come: the others' streams go on after the timeout, and nothing was written to it."""
    count = 1000
    place, out = Place(comm, count), GpuArray(np.zeros(count * comm.size, "float32"))
    place.x.put(integers(comm.rank, count))
    with comm.split(0) as another:
        if comm.rank != 1:
            error = failure_of(lambda: comm.all_gather(place.x, out=out))
            assert isinstance(error, ringreduce.TimeoutError), error
            wait_for(comm.device_stream)
        another.barrier(timeout=PATIENCE)
        check(place.x, comm, integers(comm.rank, count))
        assert place.is_intact(comm)


def killed(comm):
    """A rank dies in the middle; the others' streams go on, and so do they."""
    count = 1000
    place, out = Place(comm, count), GpuArray(np.zeros(count * comm.size, "float32"))
    assert is_copied(comm, comm.all_gather, place.x, out=out)
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = failure_of(lambda: comm.all_gather(place.x, out=out))
    assert isinstance(error, ringreduce.PeerLost) and error.rank == 1, error
    wait_for(comm.device_stream)
    with comm.shrink() as left:
        left.register(place.whole)
        place.x.put(integers(left.rank, count))
        out = GpuArray(np.zeros(count * left.size, "float32"))
        assert is_copied(left, left.all_gather, place.x, out=out)
        check(out, left, np.concatenate([integers(r, count) for r in range(left.size)]))


def on_a_device(comm, what):
    library().call("choose_device", comm.rank % library().count_devices())
    globals()[what](comm)


def main() -> None:
    what, world = globals()[sys.argv[1]], int(sys.argv[2])
    timeout = 1.5 if what is absent else PATIENCE
    try:
        ringreduce.run(on_a_device, world, sys.argv[1], timeout=timeout, max_blocks=0)
    except ringreduce.RankFailed as error:
        assert what is killed and error.rank == 1, error
    print("well")


if __name__ == "__main__":
    main()
