"""Communicators whose arrays are in GPU memory, with ranks as threads on one GPU."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from tests.conftest import slowly
from tests.processes import python

from .emulated_nccl import EMULATED_NCCL
from .gpu_arrays import DlpackArray, GpuArray, failure_of, integers, library, new_stream, on_gpu, wait_for
from .limits import PATIENCE
from .probe import HAS_CARD
from .ranks import ON_EITHER, wait_until

pytestmark = [
    ON_EITHER,
    pytest.mark.usefixtures("few_blocks"),
]

LEGACY, PER_THREAD = 1, 2  # as cudaStreamLegacy and cudaStreamPerThread are
ALL_REDUCES = [a.name for a in ringreduce.algorithms("all_reduce")]


def summed(world, count, dtype="float32"):
    return sum(integers(rank, count, "int64") for rank in range(world)).astype(dtype)


def _all_reduce(comm, counts, algorithms, in_place):
    for count in counts:
        for algorithm in algorithms:
            x = GpuArray(integers(comm.rank, count))
            out = x if in_place else GpuArray(np.zeros(count, "float32"))
            assert comm.all_reduce(x, out=out, algorithm=algorithm) is out
            assert (out.get(comm) == summed(comm.size, count)).all(), (count, algorithm)
            if not in_place:
                assert (x.get(comm) == integers(comm.rank, count)).all()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_all_reduce(world, in_place):
    """Small ones are sent with flags, large ones written where they belong."""
    on_gpu(_all_reduce, world, (1, 5, 4096, 70_001), ("auto",), in_place)


@pytest.mark.skipif(HAS_CARD, reason="a card has 32 queues, too few for as many ranks of a process")
def test_more_ranks_than_a_gpu_has_queues(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "128")
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "64")
    on_gpu(_all_reduce, 20, (5, 20_011), ("auto", "ring", "two_shot"), False)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_algorithm(world):
    on_gpu(_all_reduce, world, (3, 20_011), ALL_REDUCES, True)


def _every_collective(comm):
    world, rank, count = comm.size, comm.rank, 100
    whole = [np.arange(world * count) + 1000.0 * r for r in range(world)]
    own = slice(rank * count, (rank + 1) * count)
    on_root = rank == 1

    def given():
        return GpuArray(whole[rank].astype("float32"))

    def room(length):
        return GpuArray(np.zeros(length, "float32"))

    every = world * world * count
    calls = {  # and what this rank must end with
        "all_gather": (
            lambda name: comm.all_gather(given(), out=room(every), algorithm=name),
            np.concatenate(whole),
        ),
        "reduce_scatter": (
            lambda name: comm.reduce_scatter(given(), out=room(count), algorithm=name),
            sum(whole)[own],
        ),
        "broadcast": (lambda name: comm.broadcast(given(), 1, algorithm=name), whole[1]),
        "reduce": (lambda name: comm.reduce(given(), 1, algorithm=name), sum(whole) if on_root else None),
        "gather": (
            lambda name: comm.gather(given(), 1, out=room(every) if on_root else None, algorithm=name),
            np.concatenate(whole) if on_root else None,
        ),
        "scatter": (
            lambda name: comm.scatter(given() if on_root else None, 1, out=room(count), algorithm=name),
            whole[1][own],
        ),
        "all_to_all": (
            lambda name: comm.all_to_all(given(), out=room(world * count), algorithm=name),
            np.concatenate([x[own] for x in whole]),
        ),
        "scan": (lambda name: comm.scan(given(), algorithm=name), sum(whole[: rank + 1])),
        "exscan": (lambda name: comm.exscan(given(), algorithm=name), sum(whole[:rank], 0 * whole[0])),
    }
    for collective, (call, wanted) in calls.items():
        for name in ["auto", *[a.name for a in ringreduce.algorithms(collective)]]:
            result = call(name)
            if wanted is not None:
                assert (result.get(comm) == wanted).all(), (collective, name)


@pytest.mark.parametrize("world", [2, 4])
def test_every_collective(world):
    on_gpu(_every_collective, world)


def _exchange_in_place(comm):
    """Also beside a rank that does not: short ones are sent, long ones walk the program."""
    for count in (3, 5000):
        given = [integers(rank, count * comm.size) for rank in range(comm.size)]
        wanted = np.concatenate([each[comm.rank * count :][:count] for each in given])
        for in_place in (comm.rank == 0, True):
            x = GpuArray(given[comm.rank])
            out = x if in_place else GpuArray(np.zeros(count * comm.size, "float32"))
            assert (comm.all_to_all(x, out=out).get(comm) == wanted).all()


def test_all_to_all_in_place():
    on_gpu(_exchange_in_place, 3)


def test_more_blocks_than_have_arenas(monkeypatch):
    """Direct kernels have more than others."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "256")
    on_gpu(_every_collective, 2, max_blocks=64)


def _uneven(comm):
    counts = [700, 0, 3, 1500][: comm.size]
    own = np.arange(counts[comm.rank], dtype="float32") + 10_000 * comm.rank
    all_of_them = np.concatenate(
        [np.arange(n, dtype="float32") + 10_000 * rank for rank, n in enumerate(counts)]
    )
    for _ in range(2):
        out = comm.all_gather(GpuArray(own), out=GpuArray(np.zeros(sum(counts), "float32")), counts=counts)
        assert (out.get(comm) == all_of_them).all()
    x = GpuArray(integers(comm.rank, sum(counts)))
    part = comm.reduce_scatter(x, out=GpuArray(np.zeros(counts[comm.rank], "float32")), counts=counts)
    wanted = np.split(summed(comm.size, sum(counts)), np.cumsum(counts)[:-1])[comm.rank]
    assert (part.get(comm) == wanted).all()
    sizes = [[(i + j) % 3 * 500 for j in range(comm.size)] for i in range(comm.size)]  # from i to j
    sent = [np.full(n, 100 * comm.rank + j, "float32") for j, n in enumerate(sizes[comm.rank])]
    came = [n[comm.rank] for n in sizes]
    out = comm.all_to_all(
        *(GpuArray(np.concatenate(sent)),),
        out=GpuArray(np.zeros(sum(came), "float32")),
        send_counts=sizes[comm.rank],
        recv_counts=came,
    )
    wanted = np.concatenate([np.full(n, 100 * i + comm.rank, "float32") for i, n in enumerate(came)])
    assert (out.get(comm) == wanted).all()


def test_uneven_blocks():
    on_gpu(_uneven, 4)


def _ops(comm):
    for count in (1000, 50_000):
        for dtype in ("float64", "float16", ml_dtypes.bfloat16, "int32", "uint8", "complex64"):
            for algorithm in ("auto", "ring"):
                name = np.dtype(dtype)
                if name.kind == "V":  # the CUDA array interface has no name for it
                    continue
                x = GpuArray(integers(comm.rank, count, dtype))
                comm.all_reduce(x, "avg", algorithm=algorithm)
                total = summed(comm.size, count, "int64")
                wanted = total // comm.size if name.kind in "iu" else (total / comm.size).astype(dtype)
                assert (x.get(comm) == wanted).all(), (dtype, algorithm, count)
        x = GpuArray(integers(comm.rank, count))
        comm.all_reduce(x, factor=comm.rank + 1.0)
        assert (x.get(comm) == sum((r + 1) * integers(r, count) for r in range(comm.size))).all()
        x = GpuArray(integers(comm.rank, count))
        comm.all_reduce(x, "max")
        assert (x.get(comm) == np.maximum.reduce([integers(r, count) for r in range(comm.size)])).all()


def test_ops_and_dtypes():
    on_gpu(_ops, 4)


def _misaligned(comm):
    for count in (999, 40_001):
        x = GpuArray(integers(comm.rank, count), offset=comm.rank)
        out = GpuArray(np.zeros(count, "float32"), offset=1)
        comm.all_reduce(x, out=out)
        assert (out.get(comm) == summed(comm.size, count)).all()


def test_arrays_that_begin_anywhere():
    on_gpu(_misaligned, 3)


def _asynchronous(comm):
    """What is on the stream comes before, what comes to it after wait() behind, and nothing waits on the host."""
    stream, count = new_stream(), 20_000
    handle = stream.handle.value
    late, x = GpuArray(integers(comm.rank, count)), GpuArray(np.zeros(count, "float32"))
    much, more, found = library().Memory(32 << 20), library().Memory(32 << 20), GpuArray(late.values())
    for algorithm in ("auto", "ring"):
        library().move(much.address, more.address, much.size, stream)  # takes a while
        library().move(x.address, late.address, 4 * count, stream)
        work = comm.all_reduce(x, algorithm=algorithm, stream=handle, async_op=True)
        assert work.wait() is x
        library().move(found.address, x.address, 4 * count, stream)  # to the host, it would block other ranks
        library().synchronize(stream)
        assert (found.values() == summed(comm.size, count)).all()
        assert work.done() and work.exception() is None
    works = [comm.all_reduce(x, "max", stream=handle, async_op=True) for _ in range(50)]
    assert works[-1].wait(timeout=PATIENCE) is x
    assert all(work.done() for work in works)
    library().synchronize(stream)


def test_asynchronous_calls():
    on_gpu(_asynchronous, 3)


def _asynchronous_and_alone(comm):
    x = GpuArray(np.ones(1000, "float32"))
    work = comm.all_reduce(x, async_op=True)
    if comm.rank == 1:
        with pytest.raises(ringreduce.TimeoutError, match="has not completed after"):
            work.wait(timeout=0.05)
        assert not work.done()
        until = time.monotonic() + 10
        while not work.done():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert isinstance(work.exception(), ringreduce.TimeoutError)
        with pytest.raises(ringreduce.TimeoutError):
            work.wait()


def test_an_asynchronous_call_that_fails():
    def main(comm):
        comm.all_reduce(GpuArray(np.ones(10, "float32")))
        if comm.rank == 1:
            _asynchronous_and_alone(comm)
        else:
            time.sleep(3)

    on_gpu(main, 2, timeout=1.0)


def _by_dlpack(comm):
    for dtype in ("float32", "float64", "int16", "uint8"):
        x, out = GpuArray(integers(comm.rank, 1000, dtype)), GpuArray(np.zeros(1000, dtype))
        comm.all_reduce(DlpackArray(x), out=DlpackArray(out))
        assert (out.get(comm) == summed(comm.size, 1000, dtype)).all()
    comm.all_reduce(x, out=DlpackArray(out))
    with pytest.raises(ValueError, match="out is required"):
        comm.all_gather(DlpackArray(x))
    with pytest.raises(ValueError, match="x is in GPU memory and not contiguous"):
        comm.all_reduce(DlpackArray(x, stride=2))
    with pytest.raises(ValueError, match="x is neither in CPU memory nor in GPU memory"):
        comm.all_reduce(DlpackArray(x, device_type=7))


def test_arrays_that_speak_dlpack():
    on_gpu(_by_dlpack, 2)


def _messages(comm):
    """Around the ring, large and small, behind what the stream has to do."""
    stream = new_stream()
    handle = stream.handle.value
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 3, 100_000):
        late, x = GpuArray(integers(comm.rank, count)), GpuArray(np.zeros(count, "float32"))
        came = GpuArray(np.zeros(count, "float32"))
        much, more = library().Memory(16 << 20), library().Memory(16 << 20)
        library().move(much.address, more.address, much.size, stream)  # takes a while
        library().move(x.address, late.address, 4 * count, stream)
        sent = comm.send(x, to, tag=count, async_op=True, stream=handle)
        assert comm.recv(came, source, tag=count, stream=handle) is came
        sent.wait()
        assert (came.get(comm) == integers(source, count)).all()
        coming = comm.recv(came, tag=7, async_op=True, stream=handle)
        comm.send(x, to, tag=7)
        assert coming.wait() == (came, source)
        assert (came.get(comm) == integers(source, count)).all()
    on_host = np.zeros(count, "float32")
    sent = comm.send(x, to, async_op=True)
    comm.recv(on_host, source)
    sent.wait()
    assert (on_host == integers(source, count)).all()


def test_messages():
    on_gpu(_messages, 3)


def _beside_the_cpu(comm):
    for _ in range(20):
        on_cpu = integers(comm.rank, 100_000)
        x = GpuArray(integers(comm.rank, 100))
        work = comm.all_reduce(on_cpu, async_op=True)
        if comm.rank == 0:
            time.sleep(0.001)
        comm.all_reduce(x)
        work.wait()
        assert (on_cpu == summed(comm.size, 100_000)).all()
        assert (x.get(comm) == summed(comm.size, 100)).all()


def test_calls_keep_their_order_beside_those_of_the_cpu():
    """Whether asynchronous ones have begun yet is another thread's business, and differs between ranks."""
    on_gpu(_beside_the_cpu, 3)


def captured(comm, count, algorithm):
    cuda = library()
    x = GpuArray(np.zeros(count, "float32"))
    out = GpuArray(np.zeros(count, "float32"))
    stream = new_stream()
    handle = stream.handle.value
    comm.barrier()
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, out=out, algorithm=algorithm, stream=handle)
        comm.all_reduce(out, algorithm=algorithm, stream=handle)
    for i in range(1, 4):
        data = integers(comm.rank, count) * np.float32(i)
        cuda.move(x.address, data.ctypes.data, data.nbytes, stream)
        cuda.synchronize(stream)
        graph.launch(stream)
        wait_for(handle)
        assert (out.get(comm) == summed(comm.size, count) * i * comm.size).all(), i
        eager = GpuArray(integers(comm.rank, count))
        comm.all_reduce(eager, algorithm=algorithm)
        assert (eager.get(comm) == summed(comm.size, count)).all()
    comm.barrier()
    graph.close()


@pytest.mark.parametrize("count", [100, 30_000])
@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_graphs(count, algorithm):
    on_gpu(captured, 3, count, algorithm)


def _many_sizes(comm):
    for count in range(1, 600):  # more programs than are kept
        x = GpuArray(integers(comm.rank, count))
        comm.all_reduce(x, algorithm="ring")
        if count % 50 == 1:
            assert (x.get(comm) == summed(comm.size, count)).all()
    assert comm.device_memory_held < 64 << 20
    wait_for(comm.device_stream)


def test_programs_make_room():
    on_gpu(_many_sizes, 2)


def _uneven_call(comm, sizes, keep):
    """An all_to_all of so many bytes from each rank (row) to each other; also what must come."""
    x = GpuArray(np.arange(sum(sizes[comm.rank])).astype("uint8") + np.uint8(comm.rank))
    came = [row[comm.rank] for row in sizes]
    out = GpuArray(np.zeros(sum(came), "uint8"))
    keep.append(x)
    comm.all_to_all(x, out=out, send_counts=sizes[comm.rank], recv_counts=came)
    begins = [sum(row[: comm.rank]) for row in sizes]
    wanted = [
        np.arange(begin, begin + n).astype("uint8") + np.uint8(rank)
        for rank, (begin, n) in enumerate(zip(begins, came, strict=True))
    ]
    return out, np.concatenate(wanted)


def _uneven_ahead(comm, ranks_0_has_launched):
    """New counts in each call, in many slices; rank 1 comes when rank 0 has launched all."""
    keep, calls = [], 100
    comm.barrier()
    if comm.rank == 1:
        assert ranks_0_has_launched.wait(PATIENCE)
    results = []
    for number in range(calls):
        results.append(_uneven_call(comm, [[0, (2 << 20) + 16 * number], [0, 0]], keep))
    ranks_0_has_launched.set()
    for out, wanted in results[::9]:
        assert (out.get(comm) == wanted).all()


@pytest.mark.slow
def test_calls_with_new_counts_do_not_wait_for_peers():
    on_gpu(_uneven_ahead, 2, threading.Event())


def _uneven_traffic(comm):
    """As a mixture of experts has it, for longer than programs are kept, with some counts that come again."""
    rng, keep = np.random.default_rng(3), []
    often = (16 * rng.integers(0, 2_000, (comm.size, comm.size))).tolist()
    for number in range(900):
        sizes = often if number % 7 == 0 else (16 * rng.integers(0, 2_000, (comm.size, comm.size))).tolist()
        out, wanted = _uneven_call(comm, sizes, keep)
        if number == 0:
            held = comm.device_memory_held
        if number % 20 == 0:
            assert (out.get(comm) == wanted).all(), number
            keep.clear()
    wait_for(comm.device_stream)
    assert comm.device_memory_held == held


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, *slowly(4)])
def test_ever_new_counts(world):
    on_gpu(_uneven_traffic, world)


def test_groups_hold_little_memory():
    def held(comm):
        comm.all_reduce(GpuArray(np.ones(1000, "float32")))
        return comm.device_memory_held

    assert max(on_gpu(held, 2)) < 16 << 20


def test_two_gpus():
    if library().count_devices() < 2:
        pytest.skip("there is one GPU")

    def sums(comm):
        library().call("choose_device", comm.rank % 2)
        _all_reduce(comm, (100, 70_000), ("auto", "ring"), True)

    on_gpu(sums, 4, device=[0, 1, 0, 1])


def test_the_child_of_a_fork_may_drop_the_communicator():
    """Whose threads it does not have, nor their memory."""
    program = """
import gc, os
import numpy as np, ringreduce
from tests.gpu.gpu_arrays import GpuArray, in_threads, library
from tests.processes import free_stacks
library()
comms = ringreduce.local_group(2, device=0, timeout=30)
arrays = [GpuArray(np.ones(1000, "float32")) for _ in comms]
in_threads(*(lambda rank=rank: comms[rank].all_reduce(arrays[rank]) for rank in range(2)))
assert (arrays[0].get(comms[0]) == 2).all()
child = os.fork()
if child == 0:
    free_stacks()
    comms.clear()
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def _apart(data):
    """An array in memory that peer access does not cover: several pieces, as of an expandable segment."""
    array, address = GpuArray(data), ctypes.c_void_p()
    allocate = ctypes.CDLL(str(library().LIBRARY)).ringreduce_emulated_allocate_apart
    assert allocate(ctypes.byref(address), ctypes.c_size_t(data.nbytes), 3) == 0
    array.address = address.value
    array.put(data)
    return array


def _where_peer_access_is_not_enough(comm):
    library().call("choose_device", comm.rank % 2)
    x, out = _apart(integers(comm.rank, 70_001)), _apart(np.zeros(70_001, "float32"))
    comm.all_reduce(x, out=out)
    assert (out.get(comm) == summed(comm.size, 70_001)).all()
    comm.all_reduce(x)
    assert (x.get(comm) == summed(comm.size, 70_001)).all()
    gathered = _apart(np.zeros(70_001 * comm.size, "float32"))
    comm.all_gather(_apart(integers(comm.rank, 70_001)), out=gathered)
    wanted = np.concatenate([integers(rank, 70_001) for rank in range(comm.size)])
    assert (gathered.get(comm) == wanted).all()
    comm.reduce_scatter(gathered, out=out)
    assert (out.get(comm) == comm.size * integers(comm.rank, 70_001)).all()


@pytest.mark.skipif(HAS_CARD, reason="on a card it is torch's or CuPy's allocator that makes such memory")
def test_two_gpus_where_peer_access_is_not_enough(few_blocks):
    on_gpu(_where_peer_access_is_not_enough, 4, device=[0, 1, 0, 1])


def _beside_a_replay(comm, count, captured, told):
    cuda = library()
    x, y = (GpuArray(integers(comm.rank, count)) for _ in range(2))
    stream = new_stream()
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, stream=stream.handle.value)
    captured.wait(PATIENCE)  # not comm's barrier, in which rank 1 might get rank 0's error
    if comm.rank == 0:
        graph.launch(stream)
        comm.all_reduce(y)  # on another stream, while the replay waits for rank 1
    else:
        told.wait(PATIENCE)
    with pytest.raises(ringreduce.MismatchError, match=r"rank 0 ran two collectives .* at the same time"):
        if comm.rank == 1:
            comm.all_reduce(y)
        for _ in range(2):  # rank 0 may have come to the first one
            comm.barrier()
    told.set()
    cuda.synchronize(stream)
    graph.close()


@pytest.mark.parametrize("count", [100, 30_000])
def test_a_replay_beside_a_call_is_refused(count):
    on_gpu(_beside_a_replay, 2, count, threading.Barrier(2), threading.Event())


def test_groups_share_the_thread_blocks_of_a_gpu():
    """Blocks of one group that wait for a rank leave room for all of another group's."""
    library()
    one, other = (ringreduce.local_group(2, device=0, timeout=PATIENCE) for _ in range(2))
    calls = [one[0], *other, one[1]]
    arrays = [GpuArray(integers(comm.rank, 100_000)) for comm in calls]
    for comm, array in zip(calls, arrays, strict=True):
        comm.all_reduce(array, algorithm="ring")
    for comm, array in zip(calls, arrays, strict=True):
        assert (array.get(comm) == summed(2, 100_000)).all()
    for comm in calls:
        comm.close()


# --- where kernels cannot wait for each other --------------------------------------------------------------


def _refused_on_all_ranks(comm, said):
    x = GpuArray(np.ones(10, "float32"))
    for _ in range(2):
        with pytest.raises(ringreduce.Error, match=said):
            comm.all_reduce(x)
    assert comm.all_reduce(np.ones(3))[0] == comm.size


def test_a_thread_block_of_each_rank_must_fit(monkeypatch):
    if HAS_CARD:
        pytest.skip("a card runs more blocks than there can be ranks")
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "3")
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))  # which cannot serve them either
    on_gpu(
        _refused_on_all_ranks,
        4,
        "a GPU that 4 ranks share runs 3 .* claimed 0 .*: close groups,",
        device=None,
    )
    on_gpu(_all_reduce, 3, (1000,), ("ring",), True)


def test_each_rank_needs_queues(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "11")
    on_gpu(_refused_on_all_ranks, 4, "need 12 of its queues, 3 each, .* has 11: set CUDA_DEVICE", device=None)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "12")
    on_gpu(_all_reduce, 4, (1000,), ("ring",), True)


# --- what is refused ---------------------------------------------------------------------------------------


def test_arguments_are_named():
    def refused(comm):
        x, y = GpuArray(np.ones(4, "float32")), np.ones(4, "float32")
        with pytest.raises(ValueError, match="x is in the memory of GPU 0, but out is in CPU memory"):
            comm.all_reduce(x, out=y)
        with pytest.raises(ValueError, match="wire"):
            comm.all_reduce(GpuArray(np.ones(4, "int32")), wire="bf16")
        with pytest.raises(ValueError, match="stream can only be used with arrays in GPU memory"):
            comm.all_reduce(y, stream=comm.device_stream)
        with pytest.raises(TypeError, match="stream must be a CUDA stream"):
            comm.all_reduce(x, stream="fast")
        with pytest.raises(ValueError, match="x is in GPU memory and supports only DLPack"):
            comm.send(DlpackArray(x), 1 - comm.rank)
        with pytest.raises(ValueError, match="out is required"):
            comm.all_gather(x)
        comm.all_reduce(x)  # it goes on
        assert (x.get(comm) == comm.size).all()

    on_gpu(refused, 2)


@pytest.mark.parametrize("default", [False, True], ids=["a stream", "0 and cudaStreamLegacy"])
def test_one_stream_for_two_ranks_is_refused(default):
    """One kernel would wait for the other, which lies behind it. The default stream has two handles."""
    launched, made = threading.Event(), threading.Barrier(2)
    own = new_stream()
    handles = (0, LEGACY) if default else (own.handle.value,) * 2

    def refused(comm):
        x = GpuArray(np.ones(4, "float32"))
        made.wait()  # no array is made beside a kernel that waits
        if comm.rank == 0:
            comm.all_reduce(x, stream=handles[0])
            launched.set()
        else:
            launched.wait()
            with pytest.raises(ValueError, match="rank 0 of this group launches on the same stream"):
                comm.all_reduce(x, stream=handles[1])
            comm.all_reduce(x)
        wait_for(comm.device_stream if comm.rank else handles[0])
        assert (x.get(comm) == 2).all()

    on_gpu(refused, 2)


def _on_streams_of_threads(comm, launched):
    """Each call is another thread's. Rank 1 comes when rank 0 has launched both."""
    given = [GpuArray(integers(comm.rank, 5000)) for _ in range(2)]
    arrays = [GpuArray(np.zeros(5000, "float32")) for _ in given]
    much, more = (GpuArray(np.zeros(8 << 20, "float32")) for _ in range(2))
    found = [GpuArray(np.zeros(5000, "float32")) for _ in given]
    has_called = [threading.Event() for _ in given]
    comm.barrier()  # no array is made beside a kernel that waits

    def call(number):
        x, stream = arrays[number], SimpleNamespace(handle=ctypes.c_void_p(PER_THREAD))
        library().move(much.address, more.address, 32 << 20, stream)  # takes a while
        library().move(x.address, given[number].address, 20_000, stream)
        comm.all_reduce(x, stream=PER_THREAD)
        has_called[number].set()
        library().move(found[number].address, x.address, 20_000, stream)
        library().synchronize(stream)

    if comm.rank == 1:
        assert launched.wait(PATIENCE)
    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread, called in zip(threads, has_called, strict=True):
        thread.start()
        assert called.wait(PATIENCE)
    launched.set()
    for thread in threads:
        thread.join()
    assert all((each.values() == summed(comm.size, 5000)).all() for each in found)


def test_each_thread_has_a_default_stream_of_its_own():
    on_gpu(_on_streams_of_threads, 2, threading.Event())


def test_devices_that_are_not_there_are_refused(monkeypatch):
    library()
    with pytest.raises(ringreduce.Error, match=r"rank 1: .*device"):
        ringreduce.local_group(2, device=[0, 99])
    with pytest.raises(ValueError, match="device must have one number for each of the 2 ranks, not 1"):
        ringreduce.local_group(2, device=[0])
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "cuda")  # NCCL would serve it
    with pytest.raises(ringreduce.Error, match=r"33 ranks .* They need 99 of its queues"):
        ringreduce.local_group(33, device=0)


# --- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, 50_000])
@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_a_mismatch_ends_the_group(count, algorithm):
    def differ(comm):
        x = GpuArray(np.ones(count, "float32"))
        comm.all_reduce(x, "max" if comm.rank == 1 else "sum", algorithm=algorithm)
        wait_for(comm.device_stream)  # its kernels end
        error = failure_of(lambda: comm.all_reduce(x))
        assert isinstance(error, ringreduce.MismatchError)
        assert "sum) by" in str(error) and "max) by" in str(error)

    on_gpu(differ, 3)


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
@pytest.mark.parametrize("count", [100, *slowly(50_000)])
def test_a_rank_that_never_comes(algorithm, count):
    ended = threading.Semaphore(0)  # once for each of the two kernels that wait for rank 1

    def wait(comm):
        x = GpuArray(np.ones(count, "float32"))
        if comm.rank == 1:
            assert ended.acquire(timeout=PATIENCE) and ended.acquire(timeout=PATIENCE)
            with pytest.raises(ringreduce.TimeoutError):
                comm.all_reduce(x)
            return
        comm.all_reduce(x, algorithm=algorithm)
        wait_for(comm.device_stream)
        ended.release()
        assert isinstance(failure_of(lambda: comm.all_reduce(x)), ringreduce.TimeoutError)

    on_gpu(wait, 3, timeout=0.7)


def test_a_rank_that_leaves():
    def leave(comm):
        x = GpuArray(np.ones(100, "float32"))
        comm.all_reduce(x)
        wait_for(comm.device_stream)
        if comm.rank == 1:
            return
        comm.all_reduce(x)
        wait_for(comm.device_stream)
        error = failure_of(lambda: comm.all_reduce(x))
        assert isinstance(error, ringreduce.PeerLost), error

    on_gpu(leave, 3, timeout=30)


def test_threads_and_streams_go_with_the_group(monkeypatch):
    """A stream of the emulated GPU is a thread, too."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "64")

    def call(comm):
        x, y = GpuArray(np.ones(10, "float32")), GpuArray(np.ones(10, "float32"))
        comm.all_reduce(x, async_op=True).wait()
        for work in (
            comm.send(x, 1 - comm.rank, tag=None, async_op=True),
            comm.recv(y, 1 - comm.rank, tag=None, async_op=True),
        ):
            work.wait()

    on_gpu(call, 2)
    before = threading.active_count(), len(os.listdir("/proc/self/task"))
    for _ in range(3):
        on_gpu(call, 2)
    assert threading.active_count() == before[0]
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before[1])
