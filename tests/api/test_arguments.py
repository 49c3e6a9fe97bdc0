"""Bad arguments raise at once, name the argument, and leave the communicator usable."""

from __future__ import annotations

import numpy as np
import pytest

import ringreduce
from tests.conftest import on_threads

F = np.float32


def x(count=4, dtype=F):
    return np.ones(count, dtype)


BAD = {
    "count of out": (ValueError, "out has 5", lambda c: c.all_reduce(x(), out=x(5))),
    "dtype of out": (
        ValueError,
        "x has dtype float32, but out has float64",
        lambda c: c.all_reduce(x(), out=x(4, float)),
    ),
    "dtype": (TypeError, "x has dtype", lambda c: c.all_reduce(x(4, "longdouble"))),
    "no array": (TypeError, "x must be an array", lambda c: c.all_reduce({})),
    "op": (ValueError, "op must be one of", lambda c: c.all_reduce(x(), "plus")),
    "op of reduce_scatter": (ValueError, "op must be one of", lambda c: c.reduce_scatter(x(), "plus")),
    "op that is no name": (TypeError, "op: str", lambda c: c.all_reduce(x(), 3)),
    "op for dtype": (
        ValueError,
        "op 'band' is not defined for dtype float32",
        lambda c: c.all_reduce(x(), "band"),
    ),
    "factor with op": (
        ValueError,
        "factor goes with op 'sum'",
        lambda c: c.all_reduce(x(), "max", factor=2.0),
    ),
    "factor with avg": (
        ValueError,
        "factor goes with op 'sum'",
        lambda c: c.reduce(x(), 0, "avg", factor=2.0),
    ),
    "factor of integers": (ValueError, "int32", lambda c: c.all_reduce(x(4, "int32"), factor=2.0)),
    "algorithm": (ValueError, "algorithm must be", lambda c: c.all_reduce(x(), algorithm="rings")),
    "algorithm of another": (ValueError, "algorithm must be", lambda c: c.broadcast(x(), algorithm="swing")),
    "root": (ValueError, "root must be", lambda c: c.broadcast(x(), 2)),
    "root of reduce": (ValueError, "root must be", lambda c: c.reduce(x(), -1)),
    "root of gather": (ValueError, "root must be", lambda c: c.gather(x(), 2)),
    "root of scatter": (ValueError, "root must be", lambda c: c.scatter(x(), 2, out=x(2))),
    "rows of reduce_scatter": (ValueError, "do not divide", lambda c: c.reduce_scatter(x(5))),
    "rows of all_to_all": (ValueError, "do not divide", lambda c: c.all_to_all(x(5))),
    "out of all_gather": (ValueError, "out has 7", lambda c: c.all_gather(x(), out=x(7))),
    "out of reduce_scatter": (ValueError, "out has 3", lambda c: c.reduce_scatter(x(), out=x(3))),
    "timeout": (ValueError, "timeout must be positive", lambda c: c.all_reduce(x(), timeout=0)),
    "timeout below zero": (ValueError, "timeout must be positive", lambda c: c.barrier(timeout=-1)),
    "overlap": (ValueError, "overlap", lambda c: (lambda a: c.all_reduce(a[:5], out=a[1:6]))(x(6))),
    "dest": (ValueError, "dest must be a rank from 0 to 1, not 2", lambda c: c.send(x(), 2)),
    "source": (ValueError, "source must be None or a rank", lambda c: c.recv(x(), -1)),
    "tag": (TypeError, "tag: int", lambda c: c.send(x(), 0, tag=1 << 31)),
    "color": (ValueError, "color", lambda c: c.split(-2)),
    "explain": (ValueError, "no collective is called 'all_produce'", lambda c: c.explain(8, "all_produce")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(what):
    kind, message, call = BAD[what]

    def rank_main(comm):
        with pytest.raises(kind, match=message):
            call(comm)
        # One rank's mistake does not disturb a call that all make.
        if comm.rank == 0:
            with pytest.raises(kind, match=message):
                call(comm)
        assert (comm.all_reduce(x()) == 2).all()

    on_threads(2, rank_main)


def test_scatter_says_what_each_rank_needs():
    def rank_main(comm):
        with pytest.raises(
            ValueError, match="x is needed on the root" if comm.rank == 0 else "out is needed"
        ):
            comm.scatter(None)
        comm.barrier()

    on_threads(2, rank_main)


def test_groups_and_launches():
    for call in (lambda: ringreduce.local_group(0), lambda: ringreduce.run(print, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            call()
    with pytest.raises(ValueError, match="go together"):
        ringreduce.init(rank=0)
    with pytest.raises(ValueError, match="rank must be"):
        ringreduce.init(3, 2, "name")
    with pytest.raises(ValueError, match="store is needed"):
        ringreduce.init(0, 2)
    with pytest.raises(ValueError, match="timeout must be positive"):
        ringreduce.init(0, 1, timeout=0)
    with pytest.raises(TypeError, match="store must be"):
        ringreduce.init(0, 2, 17)


def test_arrays():
    with pytest.raises(TypeError):
        ringreduce.empty(3, "float33")
    with pytest.raises(ValueError):
        ringreduce.empty(-3)
    assert ringreduce.empty((2, 0)).shape == (2, 0) and ringreduce.empty(()).shape == ()


def test_schedules():
    with pytest.raises(ValueError, match="no collective"):
        ringreduce.algorithms("all_produce")
    with pytest.raises(ValueError, match="rings"):
        ringreduce.schedule("all_reduce", "rings", 4, 0)
    with pytest.raises(ValueError, match="already"):
        ringreduce.register("ring", lambda world, rank: None)


def test_use_after_close():
    def rank_main(comm):
        comm.close()
        comm.close()
        for call in (
            lambda: comm.all_reduce(x()),
            comm.barrier,
            lambda: comm.split(0),
            lambda: comm.send(x(), 1 - comm.rank),
        ):
            with pytest.raises(ringreduce.ClosedError):
                call()

    on_threads(2, rank_main)
