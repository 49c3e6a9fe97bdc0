"""Quantised messages of 16-bit floats: what float32's calls give, rounded once; the same bits on all ranks."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringreduce
from ringreduce import _engine
from tests.communicator.collectives.test_custom import everybody, other_answer_first, saved_from_a_message
from tests.communicator.collectives.test_wire import (
    BLOCK,
    SEVERAL_SLICES,
    STEP,
    added,
    algorithms,
    group,
    normal,
    rounded,
)
from tests.conftest import on_group, on_processes, on_threads, over_tcp, slow_rows, slowly

NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
HALF_STEP = {"float16": 2**-11, "bfloat16": 2**-8}
"""The largest error of rounding to the type, relative to the value."""

COLLECTIVES = sorted({entry.collective for entry in ringreduce.algorithms()} - {"barrier"})
WHOLE = ("all_reduce", "reduce", "broadcast")
every_wire = pytest.mark.parametrize("wire", ["int8", "fp8"])
every_dtype = pytest.mark.parametrize("dtype", list(NARROW))


def values(count: int, rank: int, dtype: str) -> Any:
    return normal(count, rank).astype(NARROW[dtype])


def wide(array: Any) -> Any:
    return array.astype(np.float32)


def narrowed(array: Any, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        return array.astype(NARROW[dtype])


def assert_bits(result: Any, want: Any, what: Any = "") -> None:
    assert result.dtype == want.dtype and result.shape == want.shape, what
    assert np.array_equal(result.view(np.uint16), want.view(np.uint16)), what


def same_on_all(results: list[Any]) -> Any:
    for rank, result in enumerate(results):
        assert_bits(result, results[0], f"rank {rank} has other bits than rank 0")
    return results[0]


# --- every algorithm -------------------------------------------------------------------------------------------


def reduce_all(comm: Any, wire: str, dtype: str, algorithm: Any, count: int, in_place: bool) -> Any:
    """The result, and that of float32's call of the same values."""
    x = values(count, comm.rank, dtype)
    out = x if in_place else np.full(count, 99, x.dtype)
    floats = comm.all_reduce(wide(x), algorithm=algorithm, wire=wire)
    comm.all_reduce(x, out=None if in_place else out, algorithm=algorithm, wire=wire)
    if not in_place:
        assert_bits(x, values(count, comm.rank, dtype), "the input was changed")
    return out, floats


def every_algorithm(comm: Any, wire: str, dtype: str, counts: list[int]) -> list[Any]:
    return [
        reduce_all(comm, wire, dtype, algorithm, count, in_place)
        for algorithm in algorithms()
        for count in counts
        for in_place in (True, False)
    ]


def check_all(world: int, wire: str, dtype: str, calls: list[Any]) -> None:
    for same in calls:
        result = same_on_all([result for result, _ in same])
        assert_bits(result, narrowed(same[0][1], dtype))
        parts = [values(result.size, rank, dtype) for rank in range(world)]
        exact = sum(part.astype(np.float64) for part in parts)
        most = sum(float(np.abs(wide(part)).max(initial=0)) for part in parts) * STEP[wire] * (world + 1)
        far = np.abs(result.astype(np.float64) - exact)
        assert (far <= most + HALF_STEP[dtype] * (np.abs(exact) + most)).all()


@every_dtype
@every_wire
@pytest.mark.parametrize("world", [1, 2, 3, *slowly(4), 5, *slowly(6, 7), 8, *slowly(9)])
def test_every_algorithm(world, wire, dtype):
    results = on_threads(world, every_algorithm, wire, dtype, [0, 1, BLOCK, 1000, 5003])
    check_all(world, wire, dtype, list(zip(*results, strict=True)))


@pytest.mark.parametrize(
    ("run", "world", "wire", "dtype"),
    [(on_processes, 3, "int8", "bfloat16"), (over_tcp, 2, "fp8", "float16")],
)
def test_processes(run, world, wire, dtype):
    results = run(world, every_algorithm, wire, dtype, [7, 5003])
    check_all(world, wire, dtype, list(zip(*results, strict=True)))


@pytest.mark.parametrize(
    ("world", "wire", "dtype"), [(2, "fp8", "float16"), *slow_rows((3, "int8", "bfloat16"))]
)
def test_several_slices(world, wire, dtype):
    results = on_threads(world, every_algorithm, wire, dtype, [SEVERAL_SLICES])
    check_all(world, wire, dtype, list(zip(*results, strict=True)))


@every_dtype
@pytest.mark.parametrize(
    ("function", "world"), [(everybody, 5), (saved_from_a_message, 2), (other_answer_first, 3)]
)
def test_schedules_written_in_python(function, world, dtype):
    def rank_main(comm):
        return [
            reduce_all(comm, "int8", dtype, function, count, in_place)
            for count in (1, 700, 70_001)
            for in_place in (True, False)
        ]

    check_all(world, "int8", dtype, list(zip(*on_threads(world, rank_main), strict=True)))


# --- any call, beside float32's of the same values -------------------------------------------------------------


def buffers(collective: str, rank: int, world: int, count: int, source: Any, in_place: bool) -> Any:
    """x and out of a call whose root is the last rank, each None where that rank has none."""
    blocks_in = collective in ("reduce_scatter", "scatter", "all_to_all")
    blocks_out = collective in ("all_gather", "gather", "all_to_all")
    x = source(count * (world if blocks_in else 1), rank)
    out = np.full(count * (world if blocks_out else 1), 99).astype(x.dtype)
    own = slice(rank * count, (rank + 1) * count)
    if in_place or collective == "broadcast":
        if blocks_in == blocks_out:
            out = x
        elif blocks_in:
            out = x[own]
        else:
            out[own] = x
            x = out[own]
    root = rank == world - 1
    return (
        None if collective == "scatter" and not root else x,
        None if collective in ("reduce", "gather") and not root else out,
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    which=st.sampled_from([(c, a) for c in COLLECTIVES for a in algorithms(c)[1:]]),
    world=st.integers(1, 9),
    wire=st.sampled_from(["int8", "fp8"]),
    dtype=st.sampled_from(list(NARROW)),
    count=st.one_of(st.integers(0, 3000), st.sampled_from([2304, 4608, 20_000])),
    op=st.sampled_from(["sum", "avg", "prod", "min", "max", "scaled"]),
    slice_bytes=st.sampled_from([0, 1024, 5000, 20_000]),
    lanes=st.integers(1, 4),
    in_place=st.booleans(),
    odd=st.booleans(),
)
def test_any_call(which, world, wire, dtype, count, op, slice_bytes, lanes, in_place, odd):
    collective, algorithm = which
    if collective in ("scan", "exscan") and op == "avg":
        op = "sum"  # each rank's result combines another number of ranks
    handle = _engine.algorithm_handle(collective, algorithm)

    def source(size, rank):
        x = values(size, rank, dtype)
        if odd and size:  # values that are large, tiny or no numbers at all
            few = np.random.default_rng(rank).integers(0, size, 6)
            x[few] = np.array([np.nan, np.inf, -np.inf, 60_000, 1e-7, -0.0]).astype(x.dtype)
        return x

    def rank_main(comm):
        def result_of(source):
            x, out = buffers(collective, comm.rank, world, count, source, in_place)
            before = None if x is None else x.copy()
            comm._c.collective(
                collective, x, out, "sum" if op == "scaled" else op, 0.3 + comm.rank if op == "scaled" else None,
                world - 1, handle, None, None, None, False, slice_bytes, lanes, wire,
            )  # fmt: skip
            if x is not None and (out is None or not np.shares_memory(x, out)):
                assert before.tobytes() == x.tobytes(), "the input was changed"
            return out

        return result_of(source), result_of(lambda size, rank: wide(source(size, rank)))

    results = on_group(group(world), rank_main)
    for rank, (result, floats) in enumerate(results):
        if floats is not None:
            assert_bits(result, narrowed(floats, dtype), rank)
    if collective in ("all_reduce", "all_gather", "broadcast"):
        same_on_all([result for result, _ in results])


@every_dtype
def test_uneven_blocks(dtype):
    counts = [300, 0, 70_001, 1]

    def rank_main(comm):
        blocks = [values(count, rank, dtype) for rank, count in enumerate(counts)]
        gathered = comm.all_gather(blocks[comm.rank], counts=counts, wire="int8")
        whole = np.concatenate([narrowed(rounded("int8", wide(block)), dtype) for block in blocks])
        assert_bits(gathered, whole)
        x = values(sum(counts), comm.rank, dtype)
        for call, more in (
            (comm.reduce_scatter, {"counts": counts}),
            (comm.all_to_all, {
                "send_counts": [counts[(peer - comm.rank) % 4] for peer in range(4)],
                "recv_counts": [counts[(comm.rank - peer) % 4] for peer in range(4)],
            }),
        ):  # fmt: skip
            assert_bits(call(x, **more, wire="fp8"), narrowed(call(wide(x), **more, wire="fp8"), dtype))

    on_threads(4, rank_main)


def test_views_and_asynchronous_calls():
    def rank_main(comm):
        x = values(6000, comm.rank, "bfloat16")
        kept = x.copy()
        want = narrowed(comm.all_reduce(wide(x[::2]), wire="int8"), "bfloat16")
        work = comm.all_reduce(x[::2].copy(), wire="int8", async_op=True)
        comm.all_reduce(x[::2], wire="int8")
        assert_bits(x[::2].copy(), want)
        assert_bits(x[1::2].copy(), kept[1::2].copy())
        assert_bits(work.wait(30), want)

    on_threads(3, rank_main)


def test_torch_tensors():
    torch = pytest.importorskip("torch")

    def rank_main(comm):
        x = torch.from_numpy(normal(5003, comm.rank)).to(torch.bfloat16)
        want = comm.all_reduce(x.float(), wire="int8").to(torch.bfloat16)
        assert torch.equal(comm.all_reduce(x, wire="int8"), want)

    on_threads(3, rank_main)


# --- the roundings that are meant ------------------------------------------------------------------------------


@every_dtype
@every_wire
@pytest.mark.parametrize("world", [2, 3, 6])
def test_one_shot_rounds_every_value_once_and_the_sum_once(world, wire, dtype):
    results = on_threads(world, reduce_all, wire, dtype, "one_shot", 5003, False)
    want = added([rounded(wire, wide(values(5003, rank, dtype))) for rank in range(world)])
    assert_bits(same_on_all([result for result, _ in results]), narrowed(want, dtype))


@every_dtype
@every_wire
def test_moved_values_are_rounded_twice(wire, dtype):
    """To the wire format and then to the array's type, on the rank that they come from as well."""

    def rank_main(comm):
        twice = [narrowed(rounded(wire, wide(values(700, rank, dtype))), dtype) for rank in range(5)]
        for algorithm in algorithms("all_gather"):
            result = comm.all_gather(values(700, comm.rank, dtype), algorithm=algorithm, wire=wire)
            assert_bits(result, np.concatenate(twice), algorithm)
        for algorithm in algorithms("broadcast"):
            result = comm.broadcast(values(700, comm.rank, dtype), 4, algorithm=algorithm, wire=wire)
            assert_bits(result, twice[4], algorithm)

    on_threads(5, rank_main)


@pytest.mark.parametrize("algorithm", algorithms())
def test_partial_sums_have_float32s_range(algorithm):
    """Two ranks' sum would be infinite in float16, and all ranks' average is not."""

    def rank_main(comm):
        x = np.full(3000, 60_000).astype(np.float16)
        x[1500:] *= 1 if comm.rank % 2 == 0 else -1
        return comm.all_reduce(x, "avg", algorithm=algorithm, wire="int8")

    for average in on_threads(4, rank_main):
        exact = np.repeat([60_000, 0], 1500)
        assert (np.abs(average - exact) <= 60_000 * STEP["int8"]).all()


def test_sums_beyond_the_type_are_infinite():
    def rank_main(comm):
        x = np.array([60_000, -60_000, 30_000], np.float16)
        return comm.all_reduce(x, wire="int8").tolist()

    for result in on_threads(2, rank_main):
        assert result[:2] == [np.inf, -np.inf] and result[2] == pytest.approx(60_000, rel=0.01)


@every_dtype
@every_wire
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "ring", "recursive_doubling"])
def test_what_is_no_number_shows_on_all_ranks(wire, dtype, algorithm):
    def rank_main(comm):
        x = values(3000, comm.rank, dtype)
        if comm.rank == 1:
            x[1234] = np.nan
            x[2345] = np.inf
        return comm.all_reduce(x, algorithm=algorithm, wire=wire)

    result = same_on_all(on_threads(3, rank_main))
    assert np.isnan(wide(result)[[1234, 2345]]).all()
    assert np.isfinite(np.delete(wide(result), [1234, 2345])).all()


def on_an_instruction_set_of_its_own(comm: Any) -> Any:
    sets = _engine.reduce.instruction_sets()
    os.environ["RINGREDUCE_ISA"] = sets[comm.rank % len(sets)]
    results = [
        comm.all_reduce(values(5003, comm.rank, dtype), algorithm=algorithm, wire=wire)
        for dtype in NARROW
        for wire in ("int8", "fp8")
        for algorithm in algorithms()
    ]
    assert _engine.reduce.instruction_set() == sets[comm.rank % len(sets)]
    return results


def test_ranks_of_different_instruction_sets_get_the_same_bits():
    results = ringreduce.run(on_an_instruction_set_of_its_own, 3, start="spawn")
    for same in zip(*results, strict=True):
        same_on_all(list(same))


# --- what is refused -------------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_formats_of_the_arrays_own_size_are_refused(wire, dtype):
    """They save nothing."""

    def rank_main(comm):
        x = values(10, comm.rank, dtype)
        for call in (comm.all_reduce, comm.all_gather):
            with pytest.raises(ValueError, match=f"wire '{wire}' takes float32, but x is {dtype}"):
                call(x, wire=wire)
        assert_bits(x, values(10, comm.rank, dtype))
        assert comm.all_reduce(np.ones(3, NARROW[dtype]), wire="int8").tolist() == [2.0] * 3

    on_threads(2, rank_main)


def test_a_reproducible_group_refuses_to_sum_what_is_rounded():
    def rank_main(comm):
        x = np.ones(10, np.float16)
        with pytest.raises(ValueError, match=r"wire 'int8' cannot be used on a reproducible"):
            comm.all_reduce(x, wire="int8")
        assert comm.all_gather(x, wire="int8").tolist() == [1.0] * 20

    on_threads(2, rank_main, reproducible=True)


def test_ranks_whose_arrays_differ_in_type_are_told():
    """Their messages would be alike."""

    def rank_main(comm):
        with pytest.raises(ringreduce.MismatchError) as caught:
            comm.all_reduce(np.ones(1000, [np.float16, np.float32][comm.rank]), wire="int8")
            comm.barrier()
        return str(caught.value)

    for text in on_threads(2, rank_main):
        assert "float16" in text and "float32" in text
