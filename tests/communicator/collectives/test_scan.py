"""What is particular to scan and exscan; test_values.py holds every algorithm to NumPy."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from tests.communicator.collectives.test_dtypes import BITS, COMPLEX, INTEGERS, NUMBERS, OPS, inputs
from tests.conftest import on_threads


def check_dtypes(comm, dtypes, ops):
    """Exclusive results combined with a rank's own value are the inclusive ones: on rank 0, its own value."""
    for dtype in dtypes:
        for op, join in ops.items():
            for algorithm in ("auto", *(entry.name for entry in ringreduce.algorithms("exscan"))):
                if dtype in COMPLEX and op in ("min", "max"):
                    continue
                x = inputs(50, comm.rank, dtype, 1)
                before = np.full_like(x, 1)
                assert comm.exscan(x, op, out=before, algorithm=algorithm) is before
                upto = comm.scan(x.copy(), op, algorithm=algorithm)
                parts = [inputs(50, rank, dtype, 1) for rank in range(comm.rank + 1)]
                what = (dtype, op, algorithm)
                assert (x == parts[-1]).all(), what
                assert (upto == functools.reduce(join, parts)).all(), what
                assert (join(before, x) == upto).all(), what


@pytest.mark.parametrize("world", [1, 3])
def test_every_dtype_and_op(on_ranks, world):
    on_ranks(world, check_dtypes, NUMBERS, OPS)
    on_ranks(world, check_dtypes, [*INTEGERS, np.bool_], BITS)


@pytest.mark.parametrize("count", [0, 1, 9, 257, 1000])
def test_extremes_on_rank_0(count):
    """Where the smallest and largest values are not those of the numbers above. Nothing is written behind the array."""

    def rank_main(comm):
        for dtype, op, identity in (
            (np.complex128, "prod", 1),
            (np.complex64, "sum", 0),
            (np.int16, "band", -1),
        ):
            room = np.full(count + 1, 3, dtype)
            comm.exscan(room[:count], op)
            assert room[count] == 3 and (comm.rank or (room[:count] == identity).all()), dtype
        for dtype, least, most in (
            (np.int16, -(2**15), 2**15 - 1),
            (np.uint64, 0, 2**64 - 1),
            (np.float32, -np.inf, np.inf),
            (ml_dtypes.float8_e5m2, -np.inf, np.inf),
            (ml_dtypes.float8_e4m3fn, -448, 448),
        ):
            low, high = (comm.exscan(np.full(count, 3, dtype), op) for op in ("min", "max"))
            if comm.rank == 0:
                assert (low == np.array(most, dtype)).all() and (high == np.array(least, dtype)).all(), dtype
        flags = comm.exscan(np.zeros(3, bool), "band")
        return flags.tolist()

    assert on_threads(2, rank_main) == [[True] * 3, [False] * 3]


def test_averages_are_refused():
    def rank_main(comm):
        for name in ("scan", "exscan"):
            with pytest.raises(ValueError, match=rf"op 'avg' is not defined for {name}, .*divide the sum"):
                getattr(comm, name)(np.ones(3), "avg")
        return comm.scan(np.ones(1)).tolist()

    assert on_threads(2, rank_main) == [[1], [2]]


def test_forms(on_ranks):
    """Asynchronous, strided, with a factor, with a wire format, without elements."""

    def rank_main(comm):
        r = comm.rank
        works = [
            comm.scan(np.full(1000, r + 1.0), async_op=True),
            comm.exscan(np.full(7, r + 1), async_op=True),
        ]
        upto, before = (work.wait() for work in works)
        assert (upto == (r + 1) * (r + 2) / 2).all() and (before == r * (r + 1) / 2).all()
        x = np.full((4, 6), r + 1.0)[:, ::2]
        assert comm.scan(x) is x and (x == (r + 1) * (r + 2) / 2).all()
        for algorithm in ("auto", *(entry.name for entry in ringreduce.algorithms("scan"))):
            x = np.ones(40_000, "float32")
            assert (comm.scan(x, factor=r + 2.0, algorithm=algorithm) == sum(range(2, r + 3))).all()
            x = np.ones(40_000, "float32")
            assert (comm.exscan(x, factor=r + 2.0, algorithm=algorithm) == sum(range(2, r + 2))).all()
            x = np.full(3000, 4.0, "float32")
            assert np.allclose(comm.scan(x, wire="int8", algorithm=algorithm), 4 * (r + 1), 1e-2)
            x = np.full(3000, 4.0, ml_dtypes.bfloat16)
            assert (comm.exscan(x, wire="fp8", algorithm=algorithm) == 4 * r).all()
        assert comm.scan(np.empty(0)).size == comm.exscan(np.empty(0)).size == 0

    on_ranks(4, rank_main)


def test_a_mismatch_names_both_calls():
    def rank_main(comm):
        with pytest.raises(ringreduce.MismatchError) as caught:
            (comm.scan if comm.rank else comm.exscan)(np.ones(100_000))
            comm.barrier()
        return str(caught.value)

    for text in on_threads(2, rank_main):
        assert "rank 0: exscan(float64[100000], sum)" in text and "rank 1: scan(float64[100000], sum)" in text
