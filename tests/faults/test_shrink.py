"""Survivors go on: shrink() gives them a communicator whose collectives give right results."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
from ranks import Ranks, die, failure_of

import ringreduce
from tests.conftest import over_tcp, slow_rows, slowly


def _go_on(comm, board):
    """Shrinks, and works with what that gives: (size, rank, first rank's value, right results)."""
    with comm.shrink() as fewer:
        old = fewer.all_gather(np.array([comm.rank]))
        for count in (3, 1 << 18):
            x = np.full(count, comm.rank, "float32")
            fewer.all_reduce(x)
            assert (x == old.sum()).all()
        work = fewer.all_reduce(np.full(5, comm.rank, "float32"), async_op=True)
        assert (work.wait() == old.sum()).all()
        fewer.barrier()
        return old.tolist(), fewer.rank


def _check(found, survivors):
    for rank, outcome in enumerate(found):
        if rank not in survivors:
            continue
        assert outcome is not None, f"rank {rank} died"
        if outcome.error is not None:
            raise outcome.error
        assert outcome.value == (survivors, survivors.index(rank))


def _die_and_shrink(comm, board, victims, count):
    x = np.ones(count, "float32")
    comm.all_reduce(x)
    board.note(comm.rank)
    if comm.rank in victims:
        while not all(board.read(rank) for rank in range(comm.size)):  # who is in that call yet loses it
            time.sleep(0.001)
        die("kill", board, comm.rank)
    error, _ = failure_of(lambda: comm.all_reduce(x))
    assert isinstance(error, ringreduce.PeerLost)
    return _go_on(comm, board)


@pytest.mark.parametrize(
    ("size", "victims"), [(2, [0]), (3, [1]), (4, [0, 2]), *slow_rows((3, [0]), (4, [3]), (4, [1, 2, 3]))]
)
@pytest.mark.parametrize("count", [8, 1 << 20])
def test_survivors_go_on(size, victims, count):
    found = Ranks(_die_and_shrink, size, victims, count).outcomes()
    _check(found, [rank for rank in range(size) if rank not in victims])


def _die_in_shrink(comm, board, delay):
    if comm.rank == 3:
        die("kill", board, 3)
    failure_of(comm.barrier)
    board.note(comm.rank)
    if comm.rank == 1:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        time.sleep(0.0005)
    try:
        return _go_on(comm, board)
    except ringreduce.PeerLost:  # it died only after shrink() was over
        return "late"


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, *slowly(0.0005, 0.0015, 0.002, 0.004)])
def test_a_rank_dies_during_shrink(delay):
    found = Ranks(_die_in_shrink, 4, delay).outcomes()
    # Either both survivors agreed without it, or both with it. Then one may lose it in a call that the other finishes.
    values = [found[rank].value for rank in (0, 2)]
    assert all(found[rank].error is None for rank in (0, 2)), found
    without = [([0, 2], 0), ([0, 2], 1)]
    assert values == without or all(
        v in ("late", ([0, 1, 2], r)) for v, r in zip(values, (0, 2), strict=True)
    ), values


def _mismatch_then_shrink(comm, board):
    with pytest.raises(ringreduce.MismatchError):
        comm.all_reduce(np.ones(4 + comm.rank, "float32"))
        comm.barrier()
    return _go_on(comm, board)


def test_after_a_mismatch_all_go_on():
    _check(Ranks(_mismatch_then_shrink, 3).outcomes(), [0, 1, 2])


def _time_out_then_shrink(comm, board):
    if comm.rank == 1:
        time.sleep(0.5)
    with pytest.raises(ringreduce.TimeoutError):
        comm.barrier(timeout=0.2)
    return _go_on(comm, board)


def test_after_a_timeout_all_go_on():
    _check(Ranks(_time_out_then_shrink, 3).outcomes(), [0, 1, 2])


def _twice(comm, board):
    if comm.rank == 3:
        die("kill", board, 3)
    failure_of(comm.barrier)
    fewer = comm.shrink()
    if comm.rank == 0:
        die("kill", board, 0)
    failure_of(fewer.barrier)
    comm.close()
    with fewer.shrink() as fewest:
        return fewest.all_gather(np.array([comm.rank])).tolist()


def _shrink_while_another_waits(comm, board):
    if comm.rank == 1:
        error, _ = failure_of(lambda: comm.all_reduce(np.ones(8, "float32")))
        board.note(1)
    else:
        time.sleep(0.2)
        error = None
    with comm.shrink() as again:
        again.barrier()
    return error


def test_who_waits_is_told_who_shrinks():
    outcomes = Ranks(_shrink_while_another_waits, 2).outcomes()
    assert all(outcome.error is None for outcome in outcomes), outcomes
    error = outcomes[1].value
    assert isinstance(error, ringreduce.PeerLost) and error.rank == 0, repr(error)
    assert "rank 0 left the communicator with shrink()" in str(error)


def test_shrink_again():
    found = Ranks(_twice, 4).outcomes()
    assert [outcome and outcome.value for outcome in found] == [None, [1, 2], [1, 2], None]


def _stay_away(comm, board):
    if comm.rank == 1:
        time.sleep(2.0)
        return None
    with pytest.raises(ringreduce.TimeoutError) as caught:
        comm.shrink()
    return caught.value.rank


def test_a_rank_that_does_not_call_it_is_named():
    found = Ranks(_stay_away, 3, timeout=1.0).outcomes()
    assert [outcome.value for outcome in found] == [1, None, 1]


@pytest.mark.slow
def test_two_ranks_close_amid_calls():
    """What they still send after they have said that they send nothing more must not keep the others waiting."""
    rounds, closing = 30, (0, 3)

    def rank_main(comm):
        def call_on():
            with contextlib.suppress(ringreduce.Error):
                while True:
                    group.all_reduce(np.ones(3, "float32"), algorithm="two_shot")

        for number in range(rounds):
            group = comm.split(0)
            group.all_reduce(np.ones(40, "float32"))
            if comm.rank in closing:
                closer = threading.Timer(1e-5 * (number % 9), group.close)
                closer.start()
                call_on()
                closer.join()
            else:
                call_on()
                with group.shrink() as fewer:
                    assert fewer.size == comm.size - len(closing)
                group.close()
            comm.barrier()

    over_tcp(6, rank_main, timeout=5)
