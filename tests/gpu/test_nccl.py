"""Collectives of arrays in GPU memory over NCCL: what the host does with it, by the emulated libnccl.so.2 on the
emulated GPU's streams. Ranks are threads."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

import ringreduce
from tests.conftest import slowly

from .emulated_nccl import MARKS
from .gpu_arrays import GpuArray, View, library, new_stream, on_gpu, wait_for
from .test_communicator import captured

COLLECTIVES = [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
    "scan", "exscan",
]  # fmt: skip
OWN = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]
EVERY = [(collective, a.name) for collective in COLLECTIVES for a in ringreduce.algorithms(collective)]

pytestmark = MARKS


def blocks_of(collective, world, count, root, dtype="float32"):
    """Inputs, and what each rank must have; None where that is nobody's business."""
    rng = np.random.default_rng(count + world)
    is_whole = collective in ("all_reduce", "reduce", "broadcast", "scan", "exscan")
    is_own = collective in ("all_gather", "gather")
    length = count if is_whole or is_own else count * world
    given = [rng.integers(0, 9, length).astype(dtype) for _ in range(world)]
    sums = [sum(given[:rank], np.zeros_like(given[0])) for rank in range(world + 1)]
    whole = sum(given) if collective in ("all_reduce", "reduce", "reduce_scatter") else np.concatenate(given)
    split = [slice(rank * count, (rank + 1) * count) for rank in range(world)]
    wanted = {
        "all_reduce": [whole] * world,
        "reduce": [whole if rank == root else None for rank in range(world)],
        "reduce_scatter": [whole[own] for own in split],
        "all_gather": [whole] * world,
        "gather": [whole if rank == root else None for rank in range(world)],
        "broadcast": [given[root]] * world,
        "scatter": [given[root][own] for own in split],
        "all_to_all": [np.concatenate([x[own] for x in given]) for own in split],
        "scan": sums[1:],
        "exscan": sums[:-1],
    }
    return given, wanted[collective]


def call(comm, collective, x, out, root, algorithm):
    """The array that the result is in."""
    how = {"algorithm": algorithm}
    if collective == "broadcast":
        return comm.broadcast(x, root, **how)
    if collective in ("reduce", "gather"):
        return getattr(comm, collective)(x, root, out=out if comm.rank == root else None, **how)
    if collective == "scatter":
        return comm.scatter(x if comm.rank == root else None, root, out=out, **how)
    return getattr(comm, collective)(x, out=out, **how)


def part(whole, own):
    """Of another array's memory."""
    first, last, _ = own.indices(whole.shape[0])
    return View(whole, last - first, whole.dtype, first * whole.dtype.itemsize)


def places(comm, collective, given, wanted, in_place):
    """Where the input is and where the result goes: apart, or in the same memory."""
    whole = max(given, wanted if wanted is not None else given, key=len)
    if not in_place or collective == "broadcast":
        room = np.full(len(whole if wanted is None else wanted), 77, given.dtype)
        return GpuArray(given), GpuArray(room)
    if len(given) == len(whole) and (wanted is None or len(wanted) == len(whole)):
        x = GpuArray(given)
        return x, x
    all_of_it = np.full(len(whole), 77, given.dtype)
    count = len(whole) // comm.size
    own = slice(comm.rank * count, (comm.rank + 1) * count)
    all_of_it[own if len(given) < len(whole) else slice(None)] = given
    array = GpuArray(all_of_it)
    return (part(array, own), array) if len(given) < len(whole) else (array, part(array, own))


def _check_calls(comm, cases, in_place, counts):
    for collective, algorithm in cases:
        for count in counts:
            root = count % comm.size
            given, wanted = blocks_of(collective, comm.size, count, root)
            x, out = places(comm, collective, given[comm.rank], wanted[comm.rank], in_place)
            result = call(comm, collective, x, out, root, algorithm)
            if wanted[comm.rank] is not None:
                got = result.get(comm)
                assert (got == wanted[comm.rank]).all(), (collective, algorithm, count, got)
            spoilt = in_place or collective == "broadcast"
            if not spoilt:
                wait_for(comm.device_stream)
                assert (x.get(comm) == given[comm.rank]).all(), (collective, algorithm, count)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 4, *slowly(5, 8)])
def test_every_algorithm(world, in_place):
    on_gpu(_check_calls, world, EVERY, in_place, (1, 37, 1000))


def _many_sources(comm, algorithm):
    values = [np.random.default_rng(rank).integers(-4, 5, 300).astype("float32") for rank in range(comm.size)]
    for op, wanted in (("sum", sum(values)), ("avg", sum(values) * np.float32(1 / comm.size))):
        out = GpuArray(np.zeros(300, "float32"))
        comm.all_reduce(GpuArray(values[comm.rank]), op, out=out, algorithm=algorithm)
        assert (out.get(comm) == wanted).all(), op


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_more_ranks_than_a_kernel_takes_sources(algorithm):
    on_gpu(_many_sources, 35, algorithm)


def _too_many_for_one_rounding(comm):
    with pytest.raises(
        ValueError,
        match=r"dtype float16 cannot be reduced over NCCL .* of more than 32 ranks",
    ):
        comm.all_reduce(GpuArray(np.ones(3, "float16")), algorithm="one_shot")


def test_what_cannot_be_rounded_once_is_refused_where_that_was_promised():
    on_gpu(_too_many_for_one_rounding, 33, reproducible=True)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_its_own_collectives(world, in_place):
    on_gpu(_check_calls, world, [(collective, "nccl") for collective in OWN], in_place, (1, 37, 1000))


def _sliced(comm, cases):
    for collective, algorithm in cases:
        count = 3001
        given, wanted = blocks_of(collective, comm.size, count, 1)
        x, out = places(comm, collective, given[comm.rank], wanted[comm.rank], False)
        target = {"broadcast": x, "reduce": out if comm.rank == 1 else None}.get(collective, out)
        source = None if collective == "scatter" and comm.rank != 1 else x
        if collective == "gather" and comm.rank != 1:
            target = None
        handle = comm._handles.find(collective, algorithm)
        args = [
            collective,
            source,
            target,
            "sum",
            None,
            1,
            handle,
            None,
            None,
            None,
            False,
            1024,
            0,
            None,
            None,
        ]
        comm._c.collective(*args)
        if wanted[comm.rank] is not None:
            assert (target.get(comm) == wanted[comm.rank]).all(), (collective, algorithm)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_slice_by_slice(world):
    on_gpu(_sliced, world, EVERY)


def _uneven(comm, algorithm):
    counts = [700, 0, 3, 1500][: comm.size]
    at = np.cumsum([0, *counts])
    own = slice(at[comm.rank], at[comm.rank + 1])
    blocks = [np.arange(n, dtype="float32") + 10_000 * rank for rank, n in enumerate(counts)]
    out = GpuArray(np.zeros(at[-1], "float32"))
    comm.all_gather(GpuArray(blocks[comm.rank]), out=out, counts=counts, algorithm=algorithm)
    assert (out.get(comm) == np.concatenate(blocks)).all()
    whole = [
        np.random.default_rng(rank).integers(0, 9, at[-1]).astype("float32") for rank in range(comm.size)
    ]
    part = GpuArray(np.zeros(counts[comm.rank], "float32"))
    comm.reduce_scatter(GpuArray(whole[comm.rank]), "avg", out=part, counts=counts, algorithm=algorithm)
    assert (part.get(comm) == (sum(whole) / comm.size)[own]).all()
    if algorithm == "nccl":
        return
    sizes = [[(i + j) % 3 * 500 for j in range(comm.size)] for i in range(comm.size)]  # from i to j
    sent = [np.full(n, 100 * comm.rank + j, "float32") for j, n in enumerate(sizes[comm.rank])]
    came = [n[comm.rank] for n in sizes]
    out = GpuArray(np.zeros(sum(came), "float32"))
    comm.all_to_all(GpuArray(np.concatenate(sent)), out=out, send_counts=sizes[comm.rank], recv_counts=came)
    wanted = np.concatenate([np.full(n, 100 * i + comm.rank, "float32") for i, n in enumerate(came)])
    assert (out.get(comm) == wanted).all()


@pytest.mark.parametrize("algorithm", ["auto", "nccl"])
@pytest.mark.parametrize("world", [2, 4])
def test_uneven_blocks(world, algorithm):
    on_gpu(_uneven, world, algorithm)


REDUCED = {
    "sum": lambda values: sum(values),
    "prod": lambda values: np.prod(values, axis=0),
    "min": lambda values: np.min(values, axis=0),
    "max": lambda values: np.max(values, axis=0),
    "avg": lambda values: sum(values) // len(values) if values[0].dtype.kind in "iu" else sum(values) / len(values),
}  # fmt: skip


def _ops(comm, dtypes, algorithm):
    for dtype in dtypes:
        values = [np.random.default_rng(rank).integers(1, 4, 500).astype(dtype) for rank in range(comm.size)]
        for op, reduced in REDUCED.items():
            out = GpuArray(np.zeros(500, dtype))
            comm.all_reduce(GpuArray(values[comm.rank]), op, out=out, algorithm=algorithm)
            wanted = reduced([x.astype("float64" if dtype == "float16" else dtype) for x in values])
            assert (out.get(comm) == wanted.astype(dtype)).all(), (dtype, op)


@pytest.mark.parametrize("algorithm", ["nccl", "ring", "recursive_doubling", "two_shot"])
def test_ops_and_dtypes(algorithm):
    dtypes = ["float64", "float32", "float16", "int64", "int32", "int8", "uint64", "uint32", "uint8"]
    on_gpu(_ops, 4, dtypes, algorithm)


def _scaled(comm, cases):
    for dtype in ("float64", "float32", "float16"):
        values = [np.random.default_rng(rank).integers(0, 9, 500).astype(dtype) for rank in range(comm.size)]
        summed = sum((rank + 1) * x for rank, x in enumerate(values)).astype(dtype)
        count = 500 // comm.size
        for collective, algorithm in cases:
            own = slice(comm.rank * count, (comm.rank + 1) * count)
            wanted = summed[own] if collective == "reduce_scatter" else summed
            x, out = GpuArray(values[comm.rank]), GpuArray(np.zeros(len(wanted), dtype))
            how = {"factor": comm.rank + 1.0, "out": out, "algorithm": algorithm}
            try:
                getattr(comm, collective)(x, **how)
            except ValueError as refused:  # such schedules are refused everywhere
                assert "combines values within a rank" in str(refused)
                continue
            if collective != "reduce" or comm.rank == 0:
                assert (out.get(comm) == wanted).all(), (dtype, collective, algorithm)
            assert (x.get(comm) == values[comm.rank]).all()


SUMS = [(collective, name) for collective, name in EVERY if collective.startswith(("all_r", "reduce"))]


@pytest.mark.parametrize("world", [2, 4, 5])
def test_factors(world):
    on_gpu(_scaled, world, SUMS + [(collective, "nccl") for collective in OWN if "reduce" in collective])


def _refused(comm):
    def refused(message, name, x, *args, **how):
        with pytest.raises(ValueError, match=message):
            getattr(comm, name)(x, *args, algorithm="nccl", **how)

    def array(dtype):
        return GpuArray(np.zeros(4 * comm.size, dtype))

    refused("no op 'bor'", "all_reduce", array("int32"), "bor")
    refused("no reductions of dtype int16", "all_reduce", array("int16"))
    refused("no reductions of dtype complex64", "reduce", array("complex64"))
    refused("no scan; it has all_reduce", "scan", array("float32"))
    refused("no exscan; it has all_reduce", "exscan", array("float32"))
    refused("no all_to_all", "all_to_all", array("float32"), out=array("float32"))
    refused("root must be", "broadcast", array("float32"), 99)
    refused("GPU memory", "all_reduce", np.zeros(4, "float32"))
    refused("GPU memory", "broadcast", np.zeros(4, "float32"))
    x = GpuArray(np.full(5, 1, "int16"))  # moved as bytes, and nothing above has spoilt the group
    out = GpuArray(np.zeros(5 * comm.size, "int16"))
    comm.all_gather(x, out=out, algorithm="nccl")
    assert (out.get(comm) == 1).all()


def test_what_it_has_not_is_refused():
    on_gpu(_refused, 2)


def _reproducible(comm):
    x = GpuArray(np.full(10, comm.rank, "float32"))
    with pytest.raises(ValueError, match="reproducible"):
        comm.all_reduce(x, algorithm="nccl")
    comm.all_reduce(x, algorithm="two_shot")
    assert (x.get(comm) == 3).all()


def test_reproducible_groups_do_not_reduce_by_it():
    on_gpu(_reproducible, 3, reproducible=True)


def _by_own_schedule(comm, schedule):
    x = GpuArray(np.full(1000, comm.rank + 1, "float32"))
    comm.all_reduce(x, algorithm=schedule)
    assert (x.get(comm) == comm.size * (comm.size + 1) // 2).all()


def test_schedules_written_in_python():
    def star(world, rank):
        """Everybody to rank 0, and back."""
        others = [peer for peer in range(world) if peer != 0]
        if rank == 0:
            rounds = [
                ringreduce.Round(recvs=[ringreduce.Recv([0], peer, reduce=True) for peer in others]),
                ringreduce.Round(sends=[ringreduce.Send([0], others)] if others else []),
            ]
        else:
            rounds = [
                ringreduce.Round(sends=[ringreduce.Send([0], [0])]),
                ringreduce.Round(recvs=[ringreduce.Recv([0], 0)]),
            ]
        return ringreduce.Schedule("all_reduce", world, rank, chunks=1, rounds=rounds)

    on_gpu(_by_own_schedule, 3, star)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "nccl"])
@pytest.mark.parametrize("count", [100, 30_000])
@pytest.mark.parametrize("world", [1, 3])
def test_graphs(world, count, algorithm):
    on_gpu(captured, world, count, algorithm)


def _close_with_graph(comm):
    cuda = library()
    x = GpuArray(np.ones(10, "float32"))
    stream = new_stream()
    comm.barrier()
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, stream=stream.handle.value)
    comm.barrier()
    begin = time.monotonic()
    comm.close()
    assert time.monotonic() - begin < 10
    return graph


def test_closing_while_there_is_a_graph_ends():
    for graph in on_gpu(_close_with_graph, 2):
        graph.close()


def test_both_ways_in_one_group(monkeypatch):
    """Kernels that reach their peers' memory, and NCCL's own collectives between them."""
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "cuda")

    def work(comm):
        x = GpuArray(np.ones(5000, "float32"))
        for i in range(1, 6):
            comm.all_reduce(x, algorithm="ring" if i % 2 else "nccl")
        assert (x.get(comm) == comm.size**5).all()

    on_gpu(work, 3)


@pytest.mark.parametrize("transport", ["cuda", "nccl"])
def test_calls_on_several_streams_come_in_order(monkeypatch, transport):
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", transport)

    def work(comm):
        streams = [new_stream() for _ in range(2)]
        x = GpuArray(np.ones(50_000, "float32"))
        for i in range(12):
            # Two in a row are of the same kind, and two of different kinds, all on different streams.
            comm.all_reduce(x, algorithm="ring" if i // 2 % 2 else "nccl", stream=streams[i % 2].handle.value)
        wait_for(streams[1].handle.value)
        assert (x.get(comm) == comm.size**12).all()

    on_gpu(work, 2)


def test_many_calls_without_a_look():
    def work(comm):
        x = GpuArray(np.zeros(100, "float32"))
        for _ in range(300):
            comm.all_reduce(x, algorithm="nccl")
        assert (x.get(comm) == 0).all()
        assert comm.device_memory_held <= 2 << 20

    on_gpu(work, 2)


def test_waits_are_short(monkeypatch):
    """The emulated NCCL is ready for each third operation at the 20th look: no thread sleeps before that."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_NCCL_LOOKS", "20")
    calls = 60

    def work(comm):
        x = GpuArray(np.zeros(100, "float32"))
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(calls):
            comm.all_reduce(x, algorithm="nccl")
        given_away = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        wait_for(comm.device_stream)
        return given_away

    assert max(on_gpu(work, 2)) < calls / 3 * 20 / 2


# --- registering -------------------------------------------------------------------------------------------


def test_memory_is_registered_until_the_end(nccl):
    def work(comm):
        x, y, z = (GpuArray(np.ones(100, "float32")) for _ in range(3))
        comm.register(z)  # with kernels only
        comm.all_reduce(z, algorithm="nccl")
        comm.deregister(z)
        comm.register(x)
        comm.register(y)
        with pytest.raises(ValueError, match="already registered"):
            comm.register(x)
        comm.barrier()
        assert nccl.ringreduce_emulated_nccl_registered() == 2 * comm.size
        comm.barrier()
        comm.deregister(x)
        with pytest.raises(ValueError, match="not registered"):
            comm.deregister(x)
        with pytest.raises(ValueError, match="not in GPU memory"):
            comm.register(np.zeros(3))
        comm.all_reduce(y, algorithm="nccl")
        assert (y.get(comm) == comm.size).all()

    on_gpu(work, 2)
    assert nccl.ringreduce_emulated_nccl_registered() == 0
