"""Calls inside a signal handler, and beside another thread's call: they complete, or raise at once."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from ranks import run
from test_waits import Interrupted

import ringreduce


def _wait_and_handle(comm, board, outer, handler, message=False):
    """Rank 0 runs ``handler`` in a signal handler while ``outer`` waits for rank 1. Returns what the handler did."""
    done = []

    def handle(*_):
        try:
            done.append(handler(comm))
        except ringreduce.Error as error:
            done.append(error)
        board.note(0)

    comm.barrier()
    if comm.rank == 0:
        signal.signal(signal.SIGUSR1, handle)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        while not board.read(0):
            if message and not board.read(1):
                comm.send(np.full(3, 7, "float32"), 0)
                board.note(1)
            time.sleep(0.01)
    result = outer(comm)
    assert comm.all_reduce(np.ones(2), async_op=True).wait().tolist() == [2, 2]  # usable
    return result, done


def _all_reduce(comm):
    return comm.all_reduce(np.full(3, comm.rank + 1.0)).tolist()


def _work(comm):
    comm.begun = comm.all_reduce(np.ones(3), async_op=True)
    return comm.begun.wait()


def _all_reduce_and_collect(comm):
    result = _all_reduce(comm)
    return result, (comm.begun.wait() if comm.rank == 0 else comm.all_reduce(np.ones(3))).tolist()


NESTED = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(4)),
    "large": lambda comm: comm.all_reduce(np.ones(1 << 18)),
    "barrier": lambda comm: comm.barrier(),
    "all_gather": lambda comm: comm.all_gather_object("here"),
    "split()": lambda comm: comm.split(0),
    "shrink()": lambda comm: comm.shrink(),
    "grow()": lambda comm: comm._c.agree(True, 5.0),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_call_that_could_never_begin_names_both(name):
    (result, done), (other, _) = run(_wait_and_handle, 2, _all_reduce, NESTED[name], timeout=100)
    assert result == other == [3, 3, 3]
    (error,) = done
    assert isinstance(error, ringreduce.Error) and not isinstance(error, ValueError), repr(error)
    called = {"large": "all_reduce"}.get(name, name)
    assert str(error).startswith(
        f"{called} was called by a signal handler while this thread waits in call #2, "
    )
    assert "all_reduce(float64[3], sum)" in str(error)


def test_waiting_in_a_handler_for_a_call_that_could_never_begin():
    (result, done), _ = run(_wait_and_handle, 2, _all_reduce_and_collect, _work, timeout=100)
    assert result == ([3, 3, 3], [2, 2, 2])
    assert "a signal handler waits for a call that cannot begin before the handler returns" in str(done[0])


def _submit(comm):
    comm.begun = comm.all_reduce(np.ones(3), async_op=True)
    return comm.begun.done()


def test_an_asynchronous_call_in_a_handler():
    (result, done), _ = run(_wait_and_handle, 2, _all_reduce_and_collect, _submit, timeout=100)
    assert result == ([3, 3, 3], [2, 2, 2])
    assert done == [False]


def _receive(comm):
    return comm.recv(np.zeros(3, "float32"), 1).tolist()


def test_a_message_in_a_handler():
    (result, done), _ = run(_wait_and_handle, 2, _all_reduce, _receive, True, timeout=100)
    assert (result, done) == ([3, 3, 3], [[7, 7, 7]])


def _wait_for_work(comm):
    """The handler's call completes: the progress thread runs both, in turn."""
    if comm.rank == 0:
        return comm.all_reduce(np.full(3, 1.0), async_op=True).wait().tolist()
    result = comm.all_reduce(np.full(3, 2.0)).tolist()
    comm.all_reduce(np.full(3, 2.0))
    return result


def _wait_for_work_and_handle(comm, board):
    done = []

    def handle(*_):
        board.note(0)
        done.append(comm.all_reduce(np.full(3, 5.0)).tolist())

    comm.barrier()
    if comm.rank == 0:
        signal.signal(signal.SIGUSR1, handle)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        while not board.read(0):
            time.sleep(0.01)
    return _wait_for_work(comm), done


def test_a_call_in_a_handler_completes_behind_an_asynchronous_one():
    (result, done), _ = run(_wait_for_work_and_handle, 2, timeout=100)
    assert (result, done) == ([3, 3, 3], [[7, 7, 7]])


# --- beside another thread ------------------------------------------------------------------------------------


def _beside(comm, board, beside):
    comm.barrier()
    if comm.rank == 1:
        while not board.read(0):
            time.sleep(0.01)
        return comm.all_reduce(np.ones(3)).tolist(), comm.all_reduce(np.ones(5)).tolist()
    x = np.ones(3)
    thread = threading.Thread(target=comm.all_reduce, args=(x,))
    thread.start()
    time.sleep(0.2)
    try:
        answer = beside(comm)
    finally:
        board.note(0)
    thread.join()
    assert comm.all_reduce(np.ones(5)).tolist() == [2] * 5
    return x.tolist(), answer


def _interrupted(comm):
    with Interrupted(0.2):
        comm.all_reduce(np.ones(5))


def test_interrupt_of_a_call_that_has_not_begun():
    assert run(_beside, 2, _interrupted, timeout=100)[0] == ([2, 2, 2], None)


def _timed_out(comm):
    with pytest.raises(ringreduce.TimeoutError) as caught:
        comm.all_reduce(np.ones(5), timeout=0.2)
    return caught.value.rank, str(caught.value)


def test_timeout_of_a_call_that_has_not_begun():
    x, (rank, text) = run(_beside, 2, _timed_out, timeout=100)[0]
    assert (x, rank) == ([2, 2, 2], 0)
    assert text.startswith(
        "all_reduce timed out after 0.2 s, before it began: another thread of rank 0 is in call #2,"
    )


def _custom_in_a_thread(comm, board):
    """The main thread, which looks for signals, needs Python's lock meanwhile."""

    def ring(world, rank):
        return ringreduce.schedules.schedule("all_reduce", "ring", world, rank)

    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.5)
        first = comm.all_reduce(np.ones(3)).tolist()
        return first, comm.all_reduce(np.ones(5), algorithm=ring).tolist()
    y = np.ones(5)
    thread = threading.Timer(0.2, comm.all_reduce, (y,), {"algorithm": ring})
    thread.start()
    first = comm.all_reduce(np.ones(3)).tolist()
    thread.join()
    return first, y.tolist()


def test_a_new_algorithm_in_another_thread():
    assert run(_custom_in_a_thread, 2, timeout=100) == [([2] * 3, [2] * 5)] * 2
