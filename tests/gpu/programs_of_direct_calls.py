"""What tests/gpu/test_direct_calls.py runs: ranks that are processes, whose kernels reach each other's arrays.

The process that starts them does not touch the GPU: nothing of CUDA's survives a fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import numpy as np

import ringreduce
from tests.gpu.gpu_arrays import View, library, new_stream, wait_for
from tests.gpu.limits import PATIENCE
from tests.gpu.probe import HAS_CARD
from tests.gpu.ranks import EMULATED_LIBRARY

COUNT = 20_011  # elements of 4 bytes: more than one block sends with flags
OFFERS = 64  # allocations that peers keep mapped


def array(count=COUNT, dtype="float32"):
    return View(library().Memory(count * np.dtype(dtype).itemsize), count, dtype)


def integers(rank, count=COUNT, dtype="float32", seed=0):
    return np.random.default_rng((rank, seed)).integers(0, 9, count).astype(dtype)


def is_direct(comm, call):
    """Whether the kernels of a call reached all arrays; all ranks agree."""
    call()
    wait_for(comm.device_stream)
    was = comm._c.was_direct
    assert comm.all_reduce(np.full(1, was, "int64"))[0] == was * comm.size, "ranks took different ways"
    return was


def call_until_direct(comm, call):
    end = time.monotonic() + PATIENCE
    while not is_direct(comm, call):
        over = comm.all_reduce(np.full(1, time.monotonic() > end, "int64"))  # for all ranks
        assert not over[0], "no call was direct"
        time.sleep(0.02)


def reducing(comm, x, seed=0, op="sum"):
    """Calls all_reduce and looks at what comes out."""

    def call():
        x.put(integers(comm.rank, *x.shape, x.dtype, seed))
        comm.all_reduce(x, op=op)
        given = [integers(rank, *x.shape, x.dtype, seed) for rank in range(comm.size)]
        assert (x.get(comm) == (sum(given) if op == "sum" else np.max(given, 0))).all()

    return call


def collectives(comm):
    """Of parts of one allocation, on several devices where there are some."""
    library().call("choose_device", comm.rank % library().count_devices())
    memory = library().Memory(1 << 22)
    for number, dtype in enumerate(["float32", "int32", "float64"]):
        x = View(memory, COUNT, dtype, offset=8 * (number + comm.rank))
        assert is_direct(comm, reducing(comm, x)) == (number > 0)  # whatever the offset
        call_until_direct(comm, reducing(comm, x, seed=1))
        call_until_direct(comm, reducing(comm, x, seed=2, op="max"))
    each = View(memory, COUNT, "int32", offset=1 << 19)
    whole = View(memory, COUNT * comm.size, "int32", offset=1 << 20)
    other = View(library().Memory(COUNT * 4 + 12), COUNT, "int32", offset=12)

    def scatter():
        whole.put(integers(comm.rank, COUNT * comm.size))
        comm.reduce_scatter(whole, out=other)
        wanted = sum(integers(rank, COUNT * comm.size) for rank in range(comm.size))
        assert (other.get(comm) == wanted[comm.rank * COUNT :][:COUNT]).all()

    def gather():
        each.put(integers(comm.rank))
        comm.all_gather(each, out=whole)
        assert (whole.get(comm) == np.concatenate([integers(rank) for rank in range(comm.size)])).all()

    for call in (scatter, gather):  # peers reach no other array than the whole
        assert is_direct(comm, call)
    for root in range(comm.size):
        of_a_root(comm, root, each, whole, other)
    for count in (3, COUNT):
        exchanges(comm, count)
    with comm.split(0) as again:  # maps the same memory once more
        call_until_direct(again, reducing(again, x, seed=3))
    assert is_direct(comm, reducing(comm, x, seed=4))


def of_a_root(comm, root, each, whole, other):
    """The root's whole array is what its peers reach, and in a broadcast that of all ranks."""
    on_root, own = comm.rank == root, slice(comm.rank * COUNT, (comm.rank + 1) * COUNT)

    def broadcast():
        whole.put(integers(comm.rank, COUNT * comm.size))
        comm.broadcast(whole, root)
        assert (whole.get(comm) == integers(root, COUNT * comm.size)).all()

    def reduce():
        whole.put(integers(comm.rank, COUNT * comm.size))
        comm.reduce(whole, root)
        if on_root:
            given = [integers(rank, COUNT * comm.size) for rank in range(comm.size)]
            assert (whole.get(comm) == sum(given)).all()

    def gather():
        other.put(integers(comm.rank))
        comm.gather(other, root, out=whole if on_root else None)
        if on_root:
            assert (whole.get(comm) == np.concatenate([integers(r) for r in range(comm.size)])).all()

    def scatter():
        whole.put(integers(comm.rank, COUNT * comm.size))
        comm.scatter(whole if on_root else None, root, out=other)
        assert (other.get(comm) == integers(root, COUNT * comm.size)[own]).all()

    for call in (broadcast, reduce, gather, scatter):
        assert is_direct(comm, call), call.__name__


def exchanges(comm, count):
    """Peers reach the input. In place, a rank would overwrite what others have not read yet. Short ones are sent."""
    x, out = array(count * comm.size), array(count * comm.size)
    given = [integers(rank, count * comm.size) for rank in range(comm.size)]
    wanted = np.concatenate([each[comm.rank * count :][:count] for each in given])

    def call(to):
        x.put(given[comm.rank])
        comm.all_to_all(x, out=to)
        assert (to.get(comm) == wanted).all()

    if count == COUNT:
        call_until_direct(comm, lambda: call(out))
    assert not is_direct(comm, lambda: call(x if comm.rank == 0 else out))
    assert not is_direct(comm, lambda: call(x))


def reallocated(comm):
    """A rank frees its memory and gets another with the same address."""
    memory = library().Memory(1 << 20)
    call_until_direct(comm, reducing(comm, View(memory, COUNT)))
    before = memory.address
    if comm.rank == 1:
        memory.close()
        memory = library().Memory(1 << 20)
        assert HAS_CARD or memory.address == before
    call = reducing(comm, View(memory, COUNT), seed=1)
    assert not is_direct(comm, call)
    call_until_direct(comm, call)


def mapped():
    with open("/proc/self/maps") as file:
        return sum("emulated-gpu" in line for line in file)


def freed(comm):
    """What a rank has freed peers keep no longer."""
    held, memory = array(), library().Memory(1 << 20)
    call_until_direct(comm, reducing(comm, held))
    before = mapped()
    comm.barrier()  # a peer's next call announces its memory, which this rank then maps
    call_until_direct(comm, reducing(comm, View(memory, COUNT)))
    assert HAS_CARD or mapped() == before + comm.size - 1
    comm.barrier()
    memory.close()
    end = time.monotonic() + PATIENCE
    while not HAS_CARD and mapped() != before - 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert is_direct(comm, reducing(comm, held, seed=1))


def many(comm):
    """More allocations than peers keep mapped, and a graph, whose arrays they always keep."""
    cuda, stream, x = library(), new_stream(), array()
    x.put(np.zeros(COUNT))
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, stream=stream.handle.value)
    arrays = [array() for _ in range(OFFERS + 6)]
    before = mapped()
    for seed, one in enumerate(arrays):
        reducing(comm, one, seed)()
    for one in (arrays[-1], arrays[0]):
        call_until_direct(comm, reducing(comm, one, seed=1))
    assert mapped() <= before + OFFERS * (comm.size - 1)

    def replay(seed):
        x.put(integers(comm.rank, seed=seed))
        graph.launch(stream)
        cuda.synchronize(stream)
        assert (x.get(comm) == sum(integers(rank, seed=seed) for rank in range(comm.size))).all()

    for seed in range(3):
        assert is_direct(comm, lambda seed=seed: replay(seed))
    comm.barrier()
    graph.close()


def unlike(comm):
    """Memory that cannot be shared, on one rank; then another number of allocations on each."""
    one = View(library().Memory(16 << 20 if comm.rank == 0 else 1 << 20), COUNT)
    for seed in range(0 if HAS_CARD else 10):  # a card's can be shared
        assert not is_direct(comm, reducing(comm, one, seed))
        time.sleep(0.01)
    same = array()
    for seed in range(30):
        fresh = array() if comm.rank == 1 and seed % 10 < 7 else same
        reducing(comm, fresh, seed)()
        time.sleep(0.01)
    call_until_direct(comm, reducing(comm, same))


def pieces(comm):
    """Memory that is mapped piece by piece, as expandable segments are."""
    if HAS_CARD:
        return  # where torch's allocator makes such memory
    at, size = ctypes.c_void_p(), 1 << 16
    allocate = ctypes.CDLL(str(EMULATED_LIBRARY)).ringreduce_emulated_allocate_apart
    assert allocate(ctypes.byref(at), ctypes.c_size_t(16 * size), 16) == 0
    memory = library().Memory(1)
    memory.address = at.value
    for seed, (first, count) in enumerate([(3, 2), (8, 8), (2, 3), (9, 3)]):
        x = View(memory, count * size // 4 - 10, offset=first * size + 8)
        was = is_direct(comm, reducing(comm, x, seed))
        assert was == (seed == 3)  # these pieces are known from the second array
        call_until_direct(comm, reducing(comm, x, seed))


def registered(comm):
    """What is registered is mapped in that call, and stays mapped."""
    x = View(library().Memory(1 << 20), COUNT, offset=64 * comm.rank)
    comm.register(x)
    assert is_direct(comm, reducing(comm, x))
    for seed in range(OFFERS + 6):
        reducing(comm, array(), seed)()
    call_until_direct(comm, reducing(comm, array()))  # peers have made room for it
    assert is_direct(comm, reducing(comm, x, seed=1))
    comm.deregister(x)
    refusals(comm, x)
    if not HAS_CARD:  # whose memory can be shared
        large = array((16 << 20) // 4 if comm.rank == 1 else COUNT)
        refused(comm, View(large, COUNT), ringreduce.Error, "rank 1: x cannot be shared with the other ranks")
    comm.register(x)
    assert is_direct(comm, reducing(comm, x, seed=2))


def refusals(comm, x):
    """All ranks say what is wrong on one of them, and go on."""
    refused(comm, View(x, COUNT - comm.rank), ValueError, f"rank 1: x has {4 * COUNT - 4} bytes")
    comm.register(x)
    refused(comm, x if comm.rank == 1 else array(), ValueError, "rank 1: x is already registered")
    comm.deregister(x)
    try:
        comm.deregister(x)
    except ValueError as error:
        assert "x is not registered" in str(error)
    else:
        raise AssertionError("it was registered")


def refused(comm, x, kind, why):
    try:
        comm.register(x)
    except kind as error:
        assert why in str(error), error
    else:
        raise AssertionError(f"registered in spite of: {why}")


def registered_and_killed(comm):
    """A rank dies while others register; then another after they have."""
    x = array()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.register(x)
    except ringreduce.PeerLost as error:
        assert error.rank == 1, error
    with comm.shrink() as left:
        if left.size > 1:
            left.register(x)
            assert is_direct(left, reducing(left, x))


def killed(comm):
    """A rank dies in the middle; the others end, and go on without it."""
    x = array()
    call_until_direct(comm, reducing(comm, x))
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    while True:
        try:
            comm.all_reduce(x)
        except ringreduce.PeerLost as error:
            assert error.rank == 1, error
            break
        time.sleep(0.01)
    wait_for(comm.device_stream)
    assert time.monotonic() - start < 10
    with comm.shrink() as left:
        if left.size > 1:
            call_until_direct(left, reducing(left, x))


def main() -> None:
    what, world = globals()[sys.argv[1]], int(sys.argv[2])
    try:
        ringreduce.run(what, world, timeout=PATIENCE, max_blocks=1)
    except ringreduce.RankFailed as error:
        assert what in (killed, registered_and_killed) and error.rank == 1, error
    print("well")


if __name__ == "__main__":
    main()
