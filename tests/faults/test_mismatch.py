"""Ranks call different things: every rank raises MismatchError, and the text says who called what."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from ranks import Ranks, failure_of

import ringreduce
from tests.conftest import slowly
from tests.processes import within


def _x(count=8, dtype="float32"):
    return np.ones(count, dtype)


LARGE = 1 << 20

# What all ranks but the last call, what the last one calls, and what the text must say of the two.
CASES = {
    "dtype": (lambda c: c.all_reduce(_x()), lambda c: c.all_reduce(_x(8, "int32")), "float32[8]", "int32[8]"),
    "op": (lambda c: c.all_reduce(_x()), lambda c: c.all_reduce(_x(), "max"), "sum", "max"),
    "factor": (
        lambda c: c.all_reduce(_x()), lambda c: c.all_reduce(_x(), factor=1.0), "sum)", "sum with a factor",
    ),
    "count": (lambda c: c.all_reduce(_x()), lambda c: c.all_reduce(_x(9)), "[8]", "[9]"),
    "collective": (lambda c: c.all_reduce(_x()), lambda c: c.broadcast(_x()), "all_reduce(", "broadcast("),
    "barrier": (lambda c: c.barrier(), lambda c: c.all_reduce(_x()), "barrier()", "all_reduce("),
    "root": (lambda c: c.broadcast(_x(), 0), lambda c: c.broadcast(_x(), c.rank), "root 0", "root"),
    "large root": (
        lambda c: c.broadcast(_x(LARGE), 0), lambda c: c.broadcast(_x(LARGE), c.rank), "root 0", "root",
    ),
    "reduce root": (lambda c: c.reduce(_x(), 0), lambda c: c.reduce(_x(), c.rank), "root 0", "root"),
    "algorithm": (
        lambda c: c.all_reduce(_x(), algorithm="ring"),
        lambda c: c.all_reduce(_x(), algorithm="tree"),
        "ring", "tree",
    ),
    "large algorithm": (
        lambda c: c.all_reduce(_x(LARGE), algorithm="one_shot"),
        lambda c: c.all_reduce(_x(LARGE), algorithm="two_shot"),
        "one_shot", "two_shot",
    ),
    "one told, one sent": (
        lambda c: c.all_reduce(_x(8), algorithm="one_shot"),
        lambda c: c.all_reduce(_x(16), algorithm="one_shot"),
        "float32[8]", "float32[16]",
    ),
    "ring dtype": (
        lambda c: c.all_reduce(_x(LARGE), algorithm="ring"),
        lambda c: c.all_reduce(_x(LARGE, "int32"), algorithm="ring"),
        "float32", "int32",
    ),
    "tree dtype": (
        lambda c: c.all_reduce(_x(LARGE), algorithm="tree"),
        lambda c: c.all_reduce(_x(LARGE, "int32"), algorithm="tree"),
        "float32", "int32",
    ),
    "lent": (
        lambda c: c.broadcast(ringreduce.zeros(LARGE), 0),
        lambda c: c.broadcast(ringreduce.zeros(LARGE), c.rank),
        "root 0", "root",
    ),
    "split": (lambda c: c.split(0), lambda c: c.all_reduce(_x()), "all_gather(", "all_reduce("),
}  # fmt: skip


def _gather_other_counts(comm, board):
    counts = [1, 3] if comm.rank else [3, 1]
    return failure_of(lambda: comm.all_gather(_x(counts[comm.rank]), counts=counts))


def test_calls_that_are_shown_alike_are_shown_once():
    for outcome in Ranks(_gather_other_counts, 2).outcomes():
        error, _ = outcome.value
        assert isinstance(error, ringreduce.MismatchError)
        assert str(error).count("all_gather(") == 1
        assert "differ in the lengths of blocks" in str(error)


def _disagree(comm, board, case, background):
    usual, odd, _, _ = CASES[case]
    comm.barrier()
    call = odd if comm.rank == comm.size - 1 else usual
    board.note(comm.rank)

    def mine():
        if background and case != "split":
            work = _in_background(comm, call)
            work.wait()
        else:
            call(comm)

    try:
        mine()
        # A rank that could finish, because the others needed nothing of it, learns at its next call.
        error, at = failure_of(comm.barrier)
    except ringreduce.Error as problem:
        error, at = problem, time.monotonic()
    with pytest.raises(ringreduce.MismatchError):
        comm.barrier()
    return error, at


class _Background:
    """A communicator whose collectives are asynchronous."""

    def __init__(self, comm):
        self._comm, self.rank = comm, comm.rank

    def __getattr__(self, name):
        return lambda *args, **kwargs: getattr(self._comm, name)(*args, **kwargs, async_op=True)


def _in_background(comm, call):
    return call(_Background(comm))


def _check(ranks, case):
    _, _, usual, odd = CASES[case]
    found = ranks.outcomes()
    count = len(found)
    began = max(ranks.board.read(rank) for rank in range(count))
    for rank, outcome in enumerate(found):
        if outcome.error is not None:
            raise outcome.error
        error, at = outcome.value
        assert isinstance(error, ringreduce.MismatchError), (rank, repr(error))
        assert at - began < within(), f"rank {rank} needed {at - began:.2f} s"
        lines = str(error).split(";")
        # A rank that is slow to come to its call is not waited for: then another one's is shown beside the odd one.
        others = [line for line in lines if any(f"rank {other}: " in line for other in range(count - 1))]
        assert any(usual in line for line in others), str(error)
        assert all(usual in line or "has not made this call" in line for line in others), str(error)
        assert any(f"rank {count - 1}: " in line and odd in line for line in lines), str(error)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [*slowly(2), 3, *slowly(4)])
def test_every_rank_raises(case, count):
    _check(Ranks(_disagree, count, case, False), case)


@pytest.mark.parametrize("case", ["dtype", "large root", "ring dtype"])
def test_every_rank_raises_in_the_background(case):
    _check(Ranks(_disagree, 3, case, True), case)


def _skip(comm, board):
    comm.barrier()
    try:
        if comm.rank != 1:
            comm.broadcast(_x(), 2)
        for count in range(1, 100):
            comm.all_reduce(_x(count))
    except ringreduce.Error as problem:
        return problem
    return None


@pytest.mark.parametrize("count", [3, 4])
def test_a_rank_that_skips_a_call(count):
    for outcome in Ranks(_skip, count).outcomes():
        error = outcome.value
        assert isinstance(error, ringreduce.MismatchError), repr(outcome)
        assert "call #2" in str(error), error
        assert "rank 0: broadcast(" in str(error)
        assert "rank 1: all_reduce(" in str(error)


def _run_ahead(comm, board):
    comm.barrier()
    with pytest.raises(ringreduce.MismatchError) as caught:
        for _ in range(1000):
            comm.broadcast(_x()) if comm.rank == 0 else comm.all_reduce(_x())
    return str(caught.value)


@pytest.mark.parametrize("count", [2, 4])
def test_a_root_that_runs_ahead(count):
    """As far as it can, while another rank waits for it in another call."""
    for outcome in Ranks(_run_ahead, count).outcomes():
        # A rank that is slow to come to its call is not waited for: then another one's is shown.
        others = [f"rank {rank}: all_reduce(" for rank in range(1, count)]
        assert "call #2" in outcome.value and any(other in outcome.value for other in others), outcome.value
        lost = (
            "rank 0: is many calls further" in outcome.value and os.environ["RINGREDUCE_TRANSPORT"] != "shm"
        )
        assert lost or "rank 0: broadcast(" in outcome.value


def _receive_other(comm, board):
    comm.barrier()
    try:
        if comm.rank == 0:
            comm.send(_x(8), 1)
        else:
            comm.recv(_x(9), 0)
        comm.barrier()
    except ringreduce.Error as problem:
        return problem
    return None


def test_a_message_of_another_length():
    for outcome in Ranks(_receive_other, 2).outcomes():
        assert isinstance(outcome.value, ringreduce.MismatchError), repr(outcome)
        assert "recv(float32[9])" in str(outcome.value)


def _refuse(comm, board):
    for bad in (
        lambda: comm.all_reduce(_x(), "median"),
        lambda: comm.broadcast(_x(), comm.size),
        lambda: comm.all_reduce(_x(), algorithm="none"),
        lambda: comm.send(_x(), comm.size),
    ):
        with pytest.raises(ValueError):
            bad()
    return float(comm.all_reduce(_x())[0])


def test_bad_arguments_leave_the_communicator_usable():
    assert [o.value for o in Ranks(_refuse, 3).outcomes()] == [3.0] * 3
