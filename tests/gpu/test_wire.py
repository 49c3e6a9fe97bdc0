"""Quantised messages of arrays in GPU memory: the bits that the CPU's calls give, by kernels and over NCCL."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from tests.communicator.collectives import test_custom as custom
from tests.communicator.collectives.test_wire import assert_near
from tests.conftest import slowly

from .gpu_arrays import DlpackArray, GpuArray, library, new_stream, on_gpu, wait_for
from .ranks import EMULATED_ONLY

pytestmark = EMULATED_ONLY

COLLECTIVES = [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
]  # fmt: skip
WIRES = [("bf16", "float32"), ("fp16", "float32"), ("int8", "float32"), ("fp8", "float32"),
         ("int8", "float16"), ("fp8", "bfloat16")]  # fmt: skip
SUMS = ("all_reduce", "reduce_scatter", "reduce")
WHOLE = ("all_reduce", "broadcast", "reduce")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
every_wire = pytest.mark.parametrize(("wire", "dtype"), WIRES)


@pytest.fixture
def kernels(few_blocks):
    pass


@pytest.fixture
def runner(request):
    return request.getfixturevalue(request.param)


both = pytest.mark.parametrize("runner", ["kernels", "over_nccl"], indirect=True)


def normal(seed, count, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(count).astype(DTYPES[dtype])


def arrays_for(comm, collective, count, dtype):
    """A rank's input, and how many elements its result has. 0: it has none."""
    world, root = comm.size, comm.rank == 1 % comm.size
    given = count if collective in WHOLE or collective in ("all_gather", "gather") else count * world
    wanted = {"reduce_scatter": count, "scatter": count, "all_gather": count * world, "all_to_all": given}
    if collective == "gather":
        return normal(comm.rank, given, dtype), count * world if root else 0
    return normal(comm.rank, given, dtype), wanted.get(collective, given)


def on_the_gpu(data):
    """CUDA's array interface has no bfloat16."""
    made = GpuArray(data)
    return DlpackArray(made) if made.dtype == ml_dtypes.bfloat16 else made


def call(comm, collective, x, out, **how):
    if collective in ("gather", "broadcast", "scatter", "reduce"):
        how["root"] = 1 % comm.size
        if collective == "scatter" and comm.rank != how["root"]:
            x = None
    if collective == "broadcast":
        comm.broadcast(x, **how)
        return x
    getattr(comm, collective)(x, out=out, **how)
    return out


def both_ways(comm, collective, count, dtype, **how):
    """The results of the same call of CPU's arrays and of a GPU's, as bits; none where this rank has no result."""
    given, length = arrays_for(comm, collective, count, dtype)
    results = []
    for make in (lambda x: x.copy(), on_the_gpu):
        out = make(np.zeros(length, given.dtype)) if length else None
        x = make(given)
        result = call(comm, collective, x, out, **how)
        if not isinstance(result, np.ndarray | type(None)):
            result = result.get(comm)
            if collective != "broadcast":
                assert (x.get(comm).view(np.uint8) == given.view(np.uint8)).all(), "the input was changed"
        results.append(None if result is None else np.asarray(result).view(np.uint8))
    if collective == "reduce" and comm.rank != 1 % comm.size:
        return None, None
    return results


def same(comm, collective, count, dtype, **how):
    cpu, gpu = both_ways(comm, collective, count, dtype, **how)
    assert (cpu is None) == (gpu is None)
    assert cpu is None or np.array_equal(cpu, gpu), (collective, count, dtype, how)


# --- the CPU's bits ----------------------------------------------------------------------------------------
# Where a call has one slice, on the CPU and on the GPU, every value is rounded in the same places.


def _every_algorithm(comm, collective, wire, dtype):
    for algorithm in [a.name for a in ringreduce.algorithms(collective)]:
        if algorithm == "synthesised":
            continue  # it stands for another algorithm on each path
        for count in (1, 300, 500):
            same(comm, collective, count, dtype, wire=wire, algorithm=algorithm)


@both
@every_wire
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_algorithm(runner, collective, wire, dtype):
    on_gpu(_every_algorithm, 3, collective, wire, dtype)


@both
@pytest.mark.parametrize("world", [1, 2, *slowly(4, 5)])
def test_every_world(runner, world):
    def work(comm):
        for collective in COLLECTIVES:
            for wire, dtype in (("int8", "float32"), ("fp8", "bfloat16")):
                _every_algorithm(comm, collective, wire, dtype)

    on_gpu(work, world)


@both
@every_wire
def test_ops_and_factors(runner, wire, dtype):
    def work(comm):
        for algorithm in ("ring", "two_shot", "halving_doubling"):
            for op in ("avg", "prod", "min", "max"):
                same(comm, "all_reduce", 700, dtype, wire=wire, algorithm=algorithm, op=op)
        for algorithm in ("ring", "two_shot"):
            same(comm, "all_reduce", 700, dtype, wire=wire, algorithm=algorithm, factor=comm.rank + 0.3)
        same(comm, "reduce_scatter", 200, dtype, wire=wire, algorithm="direct", factor=0.7)

    on_gpu(work, 4)


@both
@every_wire
def test_uneven_blocks(runner, wire, dtype):
    counts = [300, 0, 1, 2500]

    def work(comm):
        rank = comm.rank
        for make_count, name in ((counts[rank], "all_gather"), (sum(counts), "reduce_scatter")):
            given = normal(rank, make_count, dtype)
            found = []
            for make in (lambda x: x.copy(), on_the_gpu):
                length = sum(counts) if name == "all_gather" else counts[rank]
                out = make(np.zeros(length, given.dtype))
                getattr(comm, name)(make(given), out=out, counts=counts, wire=wire, algorithm="direct")
                found.append(out.get(comm) if not isinstance(out, np.ndarray) else out)
            assert np.array_equal(found[0].view(np.uint8), found[1].view(np.uint8)), name

    on_gpu(work, 4)


@both
def test_functions_are_algorithms(runner):
    def work(comm):
        same(comm, "all_reduce", 700, "float32", wire="fp8", algorithm=custom.everybody)
        same(comm, "all_reduce", 700, "float16", wire="int8", algorithm=custom.everybody)

    on_gpu(work, 3)


# --- several slices ----------------------------------------------------------------------------------------


def _large(comm, wire, dtype, in_place, counts):
    results = {}
    for algorithm in ("ring", "two_shot", "auto"):
        for count in counts:
            given = normal(comm.rank, count, dtype)
            x = on_the_gpu(given)
            out = x if in_place else on_the_gpu(np.zeros(count, given.dtype))
            comm.all_reduce(x, out=out, wire=wire, algorithm=algorithm)
            results[algorithm, count] = out.get(comm)
    return results


@both
@every_wire
@pytest.mark.parametrize("in_place", [True, *slowly(False)])
def test_several_slices(runner, wire, dtype, in_place):
    world, counts = 3, (40_001, 70_001, 70_002)
    results = on_gpu(_large, world, wire, dtype, in_place, counts)
    for (algorithm, count), first in results[0].items():
        for result in results:
            bits = result[algorithm, count].view(np.uint8)
            assert np.array_equal(bits, first.view(np.uint8)), (algorithm, count, "ranks have different bits")
        parts = [normal(rank, count, dtype).astype("float32") for rank in range(world)]
        rounding = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 0) * np.abs(sum(parts))
        excess = np.abs(first.astype("float32") - sum(parts)) - rounding
        assert_near(sum(parts) + np.maximum(excess, 0), parts, wire)


@both
def test_what_is_exact_stays_exact(runner):
    """Sums of small integers, in as many slices as there are."""

    def work(comm):
        for wire in ("bf16", "fp16", "fp8"):
            for algorithm in ("ring", "recursive_doubling", "two_shot"):
                x = GpuArray(np.arange(100_003, dtype="float32") % 4)
                comm.all_reduce(x, wire=wire, algorithm=algorithm)
                assert (x.get(comm) == np.arange(100_003) % 4 * comm.size).all(), (wire, algorithm)

    on_gpu(work, 3)


def test_graphs(kernels):
    def work(comm):
        given = normal(comm.rank, 700)
        x, stream = GpuArray(given), new_stream()
        out = GpuArray(np.zeros(700, "float32"))
        comm.barrier()
        with library().captured(stream) as graph:
            comm.all_reduce(x, out=out, wire="int8", algorithm="ring", stream=stream.handle.value)
        wanted = given.copy()
        comm.all_reduce(wanted, wire="int8", algorithm="ring")
        for _ in range(2):
            graph.launch(stream)
            wait_for(stream.handle.value)
            assert np.array_equal(out.get(comm), wanted)
        comm.barrier()
        graph.close()

    on_gpu(work, 2)


# --- refusals ----------------------------------------------------------------------------------------------


def _refused(comm, cases):
    for message, dtype, how in cases:
        with pytest.raises(ValueError, match=message):
            comm.all_reduce(GpuArray(np.zeros(8, dtype)), **how)
    x = GpuArray(np.ones(8, "float32"))
    comm.all_reduce(x)
    assert (x.get(comm) == comm.size).all()


def test_refusals(kernels):
    wrong_dtype = (
        "wire 'int8' takes float32, float16 and bfloat16, but x is int32",
        "int32",
        {"wire": "int8"},
    )
    on_gpu(_refused, 2, [wrong_dtype, ("takes float32, but x is float16", "float16", {"wire": "bf16"})])
    on_gpu(_refused, 2, [("reproducible", "float32", {"wire": "int8"})], reproducible=True)


def test_refusals_over_nccl(over_nccl):
    on_gpu(_refused, 2, [("'nccl' has no wire formats", "float32", {"wire": "int8", "algorithm": "nccl"})])
