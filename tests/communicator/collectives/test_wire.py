"""Quantised messages: the same bits on all ranks, the roundings that are meant and no others, and refusals."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringreduce
from ringreduce import _engine
from tests.communicator.collectives.test_custom import (
    everybody,
    late_reader,
    other_answer_first,
    run_across_the_end,
    saved_from_a_message,
)
from tests.conftest import on_group, on_processes, on_threads, slow_rows, slowly

WIRES = ["bf16", "fp16", "int8", "fp8"]
STEP = {"bf16": 2**-8, "fp16": 2**-11, "int8": 1 / 253, "fp8": 2**-4}
"""The largest error of one rounding, relative to the block's largest magnitude."""

BLOCK = 256
SEVERAL_SLICES = 270_007
every_wire = pytest.mark.parametrize("wire", WIRES)


def rounded(wire: str, values: Any) -> Any:
    """What receivers decode."""
    engine = _engine.reduce
    encoded = np.empty(engine.encoded_bytes(wire, values.size), np.uint8)
    engine.encode(wire, encoded, np.ascontiguousarray(values).view(np.uint8))
    decoded = np.empty(values.size, np.float32)
    engine.decode(wire, decoded.view(np.uint8), encoded)
    return decoded


def normal(count: int, rank: int) -> Any:
    return np.random.default_rng([count, rank]).standard_normal(count).astype(np.float32)


def algorithms(collective: str = "all_reduce") -> list[str]:
    return ["auto", *(entry.name for entry in ringreduce.algorithms(collective))]


def assert_near(result: Any, parts: list[Any], wire: str, op: str = "sum") -> None:
    """Within what a rounding of every partial sum on the way may add."""
    how = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min}[op]
    want = how(np.stack(parts).astype(np.float64), axis=0)
    most = sum(float(np.abs(part).max(initial=0)) for part in parts) * STEP[wire] * (len(parts) + 1)
    assert (np.abs(result - want) <= most / (len(parts) if op == "avg" else 1)).all()


def same_on_all(results: list[Any]) -> Any:
    first = results[0].view(np.uint32)
    for rank, result in enumerate(results):
        assert np.array_equal(result.view(np.uint32), first), f"rank {rank} has other bits than rank 0"
    return results[0]


# --- the same bits ---------------------------------------------------------------------------------------------


def reduce_all(comm: Any, wire: str, algorithm: str, count: int, op: str, in_place: bool) -> Any:
    x = normal(count, comm.rank)
    out = x if in_place else np.full(count, 99, np.float32)
    comm.all_reduce(x, op, out=None if in_place else out, algorithm=algorithm, wire=wire)
    assert in_place or np.array_equal(x, normal(count, comm.rank)), "the input was changed"
    return out


def every_algorithm(comm: Any, wire: str, counts: list[int]) -> list[Any]:
    return [
        reduce_all(comm, wire, algorithm, count, "sum", in_place)
        for algorithm in algorithms()
        for count in counts
        for in_place in (True, False)
    ]


def check_every_algorithm(run: Any, world: int, wire: str, counts: list[int]) -> None:
    results = run(world, every_algorithm, wire, counts)
    wanted = [(a, count) for a in algorithms() for count in counts for _ in range(2)]
    for (algorithm, count), same in zip(wanted, zip(*results, strict=True), strict=True):
        result = same_on_all(list(same))
        assert_near(result, [normal(count, rank) for rank in range(world)], wire)
        assert world == 1 or wire != "int8" or count < 100 or not np.array_equal(
            result, sum(normal(count, rank) for rank in range(world))
        ), f"{algorithm} has rounded nothing"  # fmt: skip


@every_wire
@pytest.mark.parametrize("world", [1, 2, 3, *slowly(4), 5, *slowly(6, 7), 8, *slowly(9)])
def test_every_algorithm(world, wire):
    check_every_algorithm(on_threads, world, wire, [0, 1, BLOCK, 1000, 5003])


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.parametrize("world", [2, 3])
def test_processes(world, wire):
    check_every_algorithm(on_processes, world, wire, [7, 5003])


@pytest.mark.parametrize(("world", "wire"), [(2, "fp8"), *slow_rows((3, "int8"), (5, "bf16"))])
def test_several_slices(world, wire):
    check_every_algorithm(on_threads, world, wire, [SEVERAL_SLICES])


def test_a_larger_world():
    check_every_algorithm(on_threads, 17, "int8", [5003])


@functools.cache
def group(world: int) -> list[Any]:
    return ringreduce.local_group(world, timeout=30)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    world=st.integers(1, 9),
    wire=st.sampled_from(WIRES),
    algorithm=st.sampled_from(algorithms()[1:]),
    count=st.one_of(st.integers(0, 3000), st.sampled_from([2304, 4608, 20_000, 65_537])),
    op=st.sampled_from(["sum", "avg", "min", "max"]),
    slice_bytes=st.sampled_from([0, 1024, 5000, 20_000]),
    lanes=st.integers(1, 4),
    in_place=st.booleans(),
)
def test_any_call(world, wire, algorithm, count, op, slice_bytes, lanes, in_place):
    handle = _engine.algorithm_handle("all_reduce", algorithm)

    def rank_main(comm):
        x = normal(count, comm.rank)
        out = x if in_place else np.full(count, 99, np.float32)
        comm._c.collective(
            "all_reduce", x, out, op, None, 0, handle, None, None, None, False, slice_bytes, lanes, wire
        )
        return out

    result = same_on_all(on_group(group(world), rank_main))
    assert_near(result, [normal(count, rank) for rank in range(world)], wire, op)


@every_wire
@pytest.mark.parametrize(
    ("function", "world"),
    [
        (everybody, 1), (everybody, 5), (saved_from_a_message, 2), (run_across_the_end, 2), (late_reader, 3),
        (other_answer_first, 3),
    ],
)  # fmt: skip
def test_schedules_written_in_python(function, world, wire):
    def rank_main(comm):
        return [
            reduce_all(comm, wire, function, count, "sum", in_place)
            for count in (1, 5, 700, 70_001)
            for in_place in (True, False)
        ]

    for same in zip(*on_threads(world, rank_main), strict=True):
        result = same_on_all(list(same))
        assert_near(result, [normal(result.size, rank) for rank in range(world)], wire)


# --- the roundings that are meant ------------------------------------------------------------------------------


def added(parts: list[Any]) -> Any:
    """((r0 + r1) + r2) + ... in float32."""
    return functools.reduce(np.add, parts)


@every_wire
@pytest.mark.parametrize("world", [2, 3, 6])
def test_one_shot_rounds_every_value_once_and_sums_not_at_all(world, wire):
    results = on_threads(world, reduce_all, wire, "one_shot", 5003, "sum", False)
    want = added([rounded(wire, normal(5003, rank)) for rank in range(world)])
    np.testing.assert_array_equal(same_on_all(results), want)


@every_wire
@pytest.mark.parametrize("world", [2, 3, 6])
def test_two_shot_rounds_what_others_have_and_then_the_result(world, wire):
    count = 5003
    results = on_threads(world, reduce_all, wire, "two_shot", count, "avg", True)
    unit = BLOCK if wire in ("int8", "fp8") else 16
    chunk = math.ceil(math.ceil(count / world) / unit) * unit
    want = []
    for owner, begin in enumerate(range(0, count, chunk)):
        mine = slice(begin, begin + chunk)
        parts = [normal(count, rank)[mine] for rank in range(world)]
        parts = [part if rank == owner else rounded(wire, part) for rank, part in enumerate(parts)]
        want.append(rounded(wire, added(parts) * np.float32(1 / world)))
    np.testing.assert_array_equal(same_on_all(results), np.concatenate(want))


@every_wire
@pytest.mark.parametrize("world", [2, 5])
def test_reduce_scatter_rounds_what_others_have(world, wire):
    def rank_main(comm):
        return comm.reduce_scatter(normal(world * 700, comm.rank), algorithm="direct", wire=wire)

    for owner, result in enumerate(on_threads(world, rank_main)):
        parts = [normal(world * 700, rank).reshape(world, -1)[owner] for rank in range(world)]
        parts = [part if rank == owner else rounded(wire, part) for rank, part in enumerate(parts)]
        np.testing.assert_array_equal(result, added(parts))


@every_wire
def test_a_factor_is_multiplied_before_rounding(wire):
    def rank_main(comm):
        x, out = normal(3000, comm.rank), np.empty(3000, np.float32)
        comm.all_reduce(x, out=out, factor=0.3 + comm.rank, algorithm="one_shot", wire=wire)
        assert np.array_equal(x, normal(3000, comm.rank))
        return out, comm.all_reduce(x, factor=0.3 + comm.rank, algorithm="one_shot", wire=wire)

    want = added([rounded(wire, normal(3000, rank) * np.float32(0.3 + rank)) for rank in range(3)])
    for result in on_threads(3, rank_main):
        np.testing.assert_array_equal(result[0], want)
        np.testing.assert_array_equal(result[1], want)


@every_wire
@pytest.mark.parametrize("world", [1, 2, 5, 8])
@pytest.mark.parametrize("count", [1, 700, 30_000])
def test_moved_values_are_rounded_once(world, count, wire):
    """By whatever way they come, and on the rank that they come from as well."""

    def once(values):
        return values if world == 1 else rounded(wire, values)

    def rank_main(comm):
        mine = normal(count, comm.rank)
        gathered = np.concatenate([once(normal(count, rank)) for rank in range(world)])
        for algorithm in algorithms("all_gather"):
            x = mine.copy()
            result = comm.all_gather(x, algorithm=algorithm, wire=wire)
            np.testing.assert_array_equal(result, gathered, algorithm)
            np.testing.assert_array_equal(x, mine)
            part = result[comm.rank * count :][:count]
            result[:], part[:] = 99, mine
            comm.all_gather(part, out=result, algorithm=algorithm, wire=wire)
            np.testing.assert_array_equal(result, gathered, algorithm)
        for algorithm in algorithms("broadcast"):
            x = mine.copy()
            np.testing.assert_array_equal(
                comm.broadcast(x, world - 1, algorithm=algorithm, wire=wire), once(normal(count, world - 1))
            )

    on_threads(world, rank_main)


@every_wire
@pytest.mark.parametrize("world", [2, 5])
def test_what_stays_on_its_rank_stays_as_it_is(world, wire):
    def rank_main(comm):
        mine, root = normal(700 * world, comm.rank), 1
        blocks = [normal(700 * world, rank).reshape(world, -1) for rank in range(world)]

        def seen(rank, block):
            return block if rank == comm.rank else rounded(wire, block)

        for algorithm in algorithms("gather"):
            result = comm.gather(mine[:700].copy(), root, algorithm=algorithm, wire=wire)
            if comm.rank == root:
                want = np.concatenate([seen(rank, blocks[rank][0]) for rank in range(world)])
                np.testing.assert_array_equal(result, want, algorithm)
        for algorithm in algorithms("scatter"):
            out = np.empty(700, np.float32)
            comm.scatter(mine if comm.rank == root else None, root, out=out, algorithm=algorithm, wire=wire)
            np.testing.assert_array_equal(out, seen(root, blocks[root][comm.rank]), algorithm)
        for algorithm in algorithms("all_to_all"):
            want = np.concatenate([seen(rank, blocks[rank][comm.rank]) for rank in range(world)])
            in_place = mine.copy()
            for x, out in ((mine, np.empty_like(mine)), (in_place, in_place)):
                comm.all_to_all(x, out=out, algorithm=algorithm, wire=wire)
                np.testing.assert_array_equal(out, want, algorithm)

    on_threads(world, rank_main)


@every_wire
def test_uneven_blocks(wire):
    counts = [300, 0, 70_001, 1]

    def rank_main(comm):
        blocks = [normal(count, rank) for rank, count in enumerate(counts)]
        gathered = comm.all_gather(blocks[comm.rank], counts=counts, wire=wire)
        np.testing.assert_array_equal(gathered, np.concatenate([rounded(wire, block) for block in blocks]))
        x = normal(sum(counts), comm.rank)
        mine = comm.reduce_scatter(x, counts=counts, wire=wire)
        begin = sum(counts[: comm.rank])
        parts = [normal(sum(counts), rank)[begin:][: mine.size] for rank in range(4)]
        parts = [part if rank == comm.rank else rounded(wire, part) for rank, part in enumerate(parts)]
        np.testing.assert_array_equal(mine, added(parts))
        sizes = [(3 * comm.rank + 500 * peer) % 1700 for peer in range(4)]
        sizes[comm.rank] = 40
        others = [(3 * peer + 500 * comm.rank) % 1700 if peer != comm.rank else 40 for peer in range(4)]
        got = comm.all_to_all(normal(sum(sizes), comm.rank), send_counts=sizes, recv_counts=others, wire=wire)
        assert got.size == sum(others) and np.isfinite(got).all()

    on_threads(4, rank_main)


@pytest.mark.parametrize("algorithm", algorithms("reduce"))
@pytest.mark.parametrize("world", [3, 6])
def test_reduce(world, algorithm):
    def rank_main(comm):
        x = normal(5003, comm.rank)
        return comm.reduce(x, 1, algorithm=algorithm, wire="int8")

    results = on_threads(world, rank_main)
    assert results[0] is None
    assert_near(results[1], [normal(5003, rank) for rank in range(world)], "int8")


@every_wire
def test_asynchronous_calls_and_views(wire):
    def rank_main(comm):
        x = normal(6000, comm.rank)[::2]
        works = [comm.all_reduce(normal(count, comm.rank), wire=wire, async_op=True) for count in (10, 9999)]
        comm.all_reduce(x, wire=wire)
        return [*(work.wait(30) for work in works), np.ascontiguousarray(x)]

    for same in zip(*on_threads(3, rank_main), strict=True):
        same_on_all(list(same))


@every_wire
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "ring", "recursive_doubling"])
def test_what_is_no_number_shows_on_all_ranks(wire, algorithm):
    def rank_main(comm):
        x = normal(3000, comm.rank)
        if comm.rank == 1:
            x[1234] = np.nan
            x[2345] = np.inf
        return comm.all_reduce(x, algorithm=algorithm, wire=wire)

    result = same_on_all(on_threads(3, rank_main))
    assert np.isnan(result[1234])
    assert np.isnan(result[2345]) if wire in ("int8", "fp8") else np.isposinf(result[2345])
    assert np.isfinite(np.delete(result, [1234, 2345])).all()


def test_a_call_repeated_gives_the_same_bits():
    first, second = (on_threads(4, reduce_all, "int8", "auto", 50_000, "sum", True)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


# --- what is picked, and what is refused -----------------------------------------------------------------------


def test_auto_rounds_once_on_each_side():
    comm = group(65)[0]
    for nbytes in (8, 10_000, 1 << 26):
        for collective in ("all_reduce", "reduce_scatter", "reduce"):
            choice = comm.explain(nbytes, collective, wire="int8")
            assert choice.algorithm in ("one_shot", "two_shot", "direct")
            assert "round once" in choice.reason
    assert comm.explain(8).algorithm == "recursive_doubling"


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8", "complex64", "bool"])
def test_other_dtypes_are_refused(dtype):
    def rank_main(comm):
        x = np.ones(10, dtype)
        with pytest.raises(
            ValueError, match=f"wire 'int8' takes float32, float16 and bfloat16, but x is {dtype}"
        ):
            comm.all_reduce(x, wire="int8")
        with pytest.raises(ValueError, match=f"wire 'bf16' takes float32, but x is {dtype}"):
            comm.all_gather(x, wire="bf16")
        assert comm.all_reduce(np.ones(3, np.float32), wire="bf16").tolist() == [2.0] * 3

    on_threads(2, rank_main)


def test_unknown_names_are_refused():
    def rank_main(comm):
        for name in ("int4", "", "none", "INT8"):
            with pytest.raises(ValueError, match=f"wire must be None, bf16, .* not '{name}'"):
                comm.all_reduce(np.ones(10, np.float32), wire=name)
        with pytest.raises(TypeError):
            comm.all_reduce(np.ones(10, np.float32), wire=8)

    on_threads(2, rank_main)


@every_wire
def test_a_reproducible_group_refuses_to_sum_what_is_rounded(wire):
    def rank_main(comm):
        x = np.ones(10, np.float32)
        for call in (comm.all_reduce, comm.reduce, comm.reduce_scatter):
            with pytest.raises(ValueError, match=f"wire '{wire}' cannot be used on a reproducible"):
                call(x, wire=wire)
        assert np.array_equal(comm.all_gather(x, wire=wire), rounded(wire, np.ones(20, np.float32)))

    on_threads(2, rank_main, reproducible=True)


@pytest.mark.parametrize("wires", [(None, "int8"), ("fp8", "int8"), ("bf16", "fp16")])
def test_ranks_that_disagree_are_told(wires):
    def rank_main(comm):
        with pytest.raises(ringreduce.MismatchError) as caught:
            comm.all_reduce(np.ones(1000, np.float32), wire=wires[comm.rank])
            comm.barrier()
        return str(caught.value)

    for text in on_threads(2, rank_main):
        for wire in wires:
            assert wire is None or f"wire {wire}" in text, text


@pytest.mark.slow
def test_worlds_too_large_for_the_room_are_refused():
    """A block to each of the others is more than a round may take; an algorithm of fewer messages goes."""

    def refused(_):
        group = _engine.local_group(500, 30.0, None)
        x = np.ones(500, np.float32)
        handle = _engine.algorithm_handle("all_reduce", "two_shot")
        with pytest.raises(ValueError, match="blocks at once, not 499"):
            group[0].collective(
                "all_reduce", x, x, "sum", None, 0, handle, None, None, None, False, 0, 0, "int8"
            )
        for comm in group:
            comm.leave()

    # The gigabytes are a child's: what stays of them here, the forks of all later tests would copy.
    ringreduce.run(refused, 1)
