"""Every dtype with every op, exactly."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from tests.conftest import on_processes, on_threads

FLOATS = [
    np.float64,
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]
INTEGERS = [np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8]
COMPLEX = [np.complex64, np.complex128]
NUMBERS = [*FLOATS, *INTEGERS, *COMPLEX]
BITS = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def inputs(count, rank, dtype, most):
    """Whole numbers up to most, for signed types below 0 too; 8-bit floats hold sums of four of them."""
    x = (np.arange(count) * (rank + 2) + rank) % (most + 1)
    if np.dtype(dtype).kind not in "ub":
        x = np.where((np.arange(count) + rank) % 3 == 0, -x, x)
    if dtype in COMPLEX:
        x = x + 1j * np.roll(x, 1)
    return x.astype(dtype)


def exactly(x):
    """In a type wide enough for what is computed here to be exact."""
    return x.astype({"f": "float64", "V": "float64", "c": "complex128"}.get(x.dtype.kind, "int64"))


def whole(op, parts):
    """The result in arithmetic wide enough to be exact; then rounded (or wrapped) to the type."""
    wide = [exactly(part) for part in parts]
    total = wide[0]
    for part in wide[1:]:
        total = {**OPS, **BITS}[op](total, part)
    return total.astype(parts[0].dtype)


def check(comm, dtype, count, op, want, **more):
    parts = [inputs(count, r, dtype, 2) for r in range(comm.size)]
    x = parts[comm.rank].copy()
    comm.all_reduce(x, op, **more)
    assert x.dtype == dtype and np.array_equal(exactly(x), exactly(want(parts))), (dtype, op)
    rows = np.concatenate([parts[comm.rank]] * comm.size)
    mine = comm.reduce_scatter(rows, op, **more)
    assert np.array_equal(exactly(mine), exactly(x)), (dtype, op)
    root = comm.size - 1
    y = comm.reduce(parts[comm.rank], root, op, out=x.copy() if comm.rank == root else None, **more)
    assert comm.rank != root or np.array_equal(exactly(y), exactly(x)), (dtype, op)


def every_op(comm, dtype, count):
    for op in ["sum", "prod"] if dtype in COMPLEX else [*OPS, *(BITS if dtype in INTEGERS else [])]:
        check(comm, dtype, count, op, lambda parts, op=op: whole(op, parts))
    if dtype not in INTEGERS:
        check(
            comm, dtype, count, "avg", lambda parts: (exactly(whole("sum", parts)) / comm.size).astype(dtype)
        )
    else:
        check(
            comm, dtype, count, "avg", lambda parts: np.trunc(whole("sum", parts) / comm.size).astype(dtype)
        )


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_numbers(world, dtype):
    for count in (1, 37, 20_001):
        on_threads(world, every_op, dtype, count)


def test_numbers_over_shared_memory():
    def rank_main(comm):
        for dtype in NUMBERS:
            every_op(comm, dtype, 30_003)

    on_processes(2, rank_main)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_truth_values(world):
    def rank_main(comm):
        parts = [(np.arange(1000) >> r) % 2 == 0 for r in range(world)]
        every, some, odd = (
            np.logical_and.reduce(parts),
            np.logical_or.reduce(parts),
            np.logical_xor.reduce(parts),
        )
        want = {
            "sum": some,
            "prod": every,
            "min": every,
            "max": some,
            "band": every,
            "bor": some,
            "bxor": odd,
        }
        for op, result in want.items():
            x = comm.all_reduce(parts[comm.rank].copy(), op)
            assert x.dtype == bool and np.array_equal(x, result), op
            assert set(x.view("uint8").tolist()) <= {0, 1}

    on_threads(world, rank_main)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=lambda dtype: np.dtype(dtype).name)
def test_factors(dtype):
    def rank_main(comm):
        factor = [0.5, 2.0, 1.0][comm.rank]
        for count in (5, 40_000):
            parts = [exactly(inputs(count, r, dtype, 1)) * f for r, f in enumerate([0.5, 2.0, 1.0])]
            want = sum(parts)
            for algorithm in ("ring", "one_shot", "two_shot", "swing", "tree"):
                x = inputs(count, comm.rank, dtype, 1)
                out = comm.all_reduce(x, out=np.zeros_like(x), factor=factor, algorithm=algorithm)
                assert np.array_equal(exactly(out), want), algorithm
                assert np.array_equal(x, inputs(count, comm.rank, dtype, 1)), "the input was scaled"
                comm.all_reduce(x, factor=factor, algorithm=algorithm)
                assert np.array_equal(exactly(x), want), algorithm

    on_threads(3, rank_main)


def test_integers_wrap():
    def rank_main(comm):
        for dtype in INTEGERS:
            x = np.full(100, np.iinfo(dtype).max, dtype)
            with np.errstate(over="ignore"):
                want = x + x
            assert np.array_equal(comm.all_reduce(x), want)

    on_threads(2, rank_main)


def test_complex_numbers_have_no_order_and_no_bits():
    def rank_main(comm):
        x = np.ones(5, "complex64")
        for op in ("min", "max", *BITS):
            with pytest.raises(ValueError, match=f"op '{op}' is not defined for dtype complex64"):
                comm.all_reduce(x, op)
        for collective in ("broadcast", "all_gather", "all_to_all"):
            moved = getattr(comm, collective)(np.full(4, 1 + 2j * comm.rank, "complex128"))
            assert moved.dtype == np.complex128
        return comm.all_reduce(x)[0]

    assert on_threads(2, rank_main) == [2, 2]


def test_nan_wins():
    def rank_main(comm):
        for dtype in FLOATS:
            for op in ("min", "max"):
                x = np.ones(100, dtype)
                if comm.rank == 1:
                    x[7] = np.nan
                comm.all_reduce(x, op)
                assert np.isnan(x.astype("float32")).nonzero()[0].tolist() == [7]

    on_threads(3, rank_main)


def test_averages_by_every_algorithm():
    def rank_main(comm):
        for entry in ringreduce.algorithms("all_reduce"):
            for count in (3, 50_000):
                x = np.full(count, 3 * comm.rank, "float32")
                assert (comm.all_reduce(x, "avg", algorithm=entry.name) == 3 * (comm.size - 1) / 2).all(), (
                    entry.name
                )
        for entry in ringreduce.algorithms("reduce"):
            y = comm.reduce(np.full(9, comm.rank, "float64"), 1, "avg", algorithm=entry.name)
            assert comm.rank != 1 or (y == (comm.size - 1) / 2).all(), entry.name
        for entry in ringreduce.algorithms("reduce_scatter"):
            x = np.full(2 * comm.size, comm.rank, "float64")
            assert (comm.reduce_scatter(x, "avg", algorithm=entry.name) == (comm.size - 1) / 2).all(), (
                entry.name
            )

    for world in (2, 3, 5, 6):
        on_threads(world, rank_main)


def test_what_only_looks_like_a_known_dtype_is_refused():
    """NumPy knows several floats of a byte: this one has infinities, and the same bits mean other numbers."""

    def body(comm):
        for dtype in (
            ml_dtypes.float8_e4m3,
            ml_dtypes.float8_e3m4,
            ml_dtypes.int4,
            np.longdouble,
            np.clongdouble,
        ):
            with pytest.raises(TypeError, match="which is not supported"):
                comm.all_reduce(np.ones(8, dtype))

    ringreduce.run(body, 2)
