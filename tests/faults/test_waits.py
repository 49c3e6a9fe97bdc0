"""Waits that end: by a timeout, or by Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from ranks import Ranks, failure_of, run

import ringreduce
from tests.conftest import slow_rows, slowly
from tests.processes import metronome, within


def _sleep_through(comm, board, limit, per_call, background):
    comm.all_reduce(np.ones(7, "float32"))
    if comm.rank == comm.size - 1:
        time.sleep(limit + 1.2)  # longer than the others wait, and then ask each other
    began = time.monotonic()
    x = np.ones(9, "float32")
    try:
        answer = comm.all_reduce(x, timeout=per_call, algorithm="tree", async_op=background)
        if background:
            answer.wait()
    except ringreduce.TimeoutError as error:
        return error.rank, str(error), time.monotonic() - began
    raise AssertionError("it did not time out")


@pytest.mark.parametrize(
    # In the first one's, the ranks must also have met.
    ("timeout", "per_call", "background"),
    [(1.5, None, False), *slow_rows((60, 0.4, False), (60, 0.4, True))],
)
@pytest.mark.parametrize("count", [*slowly(2), 4])
def test_a_rank_that_never_arrives(timeout, per_call, background, count):
    late, limit = count - 1, per_call or timeout
    found = run(_sleep_through, count, limit, per_call, background, timeout=timeout)
    for rank, (blamed, text, took) in enumerate(found):
        assert blamed == late
        assert f"waiting for rank {late}" in text
        sentence = text.partition(". Last collectives of every rank:")[0]
        assert f": rank {late} has not made this call, " in sentence
        assert sentence.endswith(" made it")
        for other in range(count):
            line = next(line for line in text.splitlines() if line.strip().startswith(f"rank {other}:"))
            # A rank that computes answers no questions: who has had no message of it knows nothing of it.
            unknown = other == late and line.endswith("none known")
            assert unknown or "#1 all_reduce(float32[7], sum)" in line
            assert ("#2 all_reduce(float32[9], sum) by tree" in line) == (other != late)
        if rank != late:
            assert 0.75 * limit < took < within(limit + 1)
    waited = [took for _, _, took in found]
    # It is told at once, and does not wait for as long as the others did.
    assert waited[late] < min(waited[:late])


def _receive_in_vain(comm, board):
    if comm.rank == 0:
        with pytest.raises(ringreduce.TimeoutError) as caught:
            comm.recv(np.ones(3, "float32"), 1, tag=5, timeout=0.2)
        return str(caught.value)
    return failure_of(comm.barrier)[0]


def test_a_message_that_never_comes():
    text, error = run(_receive_in_vain, 2)
    assert "waiting for rank 1 in recv(float32[3], tag 5) by rank 0" in text
    assert isinstance(error, (ringreduce.TimeoutError, ringreduce.PeerLost))


class Interrupted:
    """Raises SIGINT in this process after a while, and checks that a wait ends soon after it."""

    def __init__(self, after: float = 0.3) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.at = 0.0
        self._timer = threading.Timer(after, self._interrupt)

    def _interrupt(self) -> None:
        self.at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self) -> Interrupted:
        metronome.start()
        self._timer.start()
        return self

    def __exit__(self, kind, error, trace) -> bool:
        took = time.monotonic() - self.at
        metronome.stop()
        assert kind is KeyboardInterrupt, kind
        assert took < within(0.3)
        return True


def _interrupt_blocking(comm, board, kind):
    x = np.ones(2, "float32")
    comm.barrier()
    if comm.rank == 1:
        if kind == "behind":
            comm.all_reduce(x, async_op=True)
        with Interrupted() as interrupted:
            comm.recv(x, 0) if kind == "recv" else comm.all_reduce(x)
        board.note(1, 3, interrupted.at)
        time.sleep(1.5)  # alive and at work with something else
        return None
    if comm.rank == 0:
        board.note(0)
        while board.read(1, 3) == 0:
            time.sleep(0.01)
    return failure_of(comm.barrier if kind == "recv" else lambda: comm.all_reduce(x))


SAYS = {
    "all_reduce": "call #2, all_reduce(float32[2], sum)",
    "recv": "recv(float32[2]) by rank 1 from rank 0",
    "behind": "call #2, all_reduce(float32[2], sum)",
}


@pytest.mark.parametrize("kind", SAYS)
@pytest.mark.parametrize("count", [2, 3])
def test_interrupt_of_a_blocking_call(kind, count):
    ranks = Ranks(_interrupt_blocking, count, kind)
    found = ranks.outcomes()
    assert found[1].error is None, found[1]
    for rank in set(range(count)) - {1}:
        error, at = found[rank].value
        assert isinstance(error, ringreduce.PeerLost) and error.rank == 1, repr(error)
        assert f"rank 1 was interrupted in {SAYS[kind]}" in str(error)
        assert at - ranks.board.read(1, 3) < within()


def _interrupt_work(comm, board):
    x = np.full(2, comm.rank, "float32")
    if comm.rank == 1:
        work = comm.all_reduce(x, async_op=True)
        with Interrupted(0.2):
            work.wait()
        board.note(1)
        return work.wait().tolist()  # the call itself went on
    while board.read(1) == 0:
        time.sleep(0.01)
    return comm.all_reduce(x).tolist()


def test_interrupt_of_a_wait_for_work():
    assert run(_interrupt_work, 2) == [[1, 1], [1, 1]]


def _interrupt_close(comm, board):
    if comm.rank == 1:
        comm.all_reduce(np.ones(2, "float32"), async_op=True)
        with Interrupted(0.2):
            comm.close()
        board.note(1, 3)
        return None
    while board.read(1, 3) == 0:
        time.sleep(0.01)
    return failure_of(lambda: comm.all_reduce(np.ones(2, "float32")))


def test_interrupt_of_close():
    error, _ = run(_interrupt_close, 2)[0]
    assert isinstance(error, ringreduce.PeerLost) and error.rank == 1


def _interrupt_shrink(comm, board):
    if comm.rank == 0:
        with Interrupted(0.2):
            comm.shrink()
        return True
    time.sleep(0.8)
    return True


def test_interrupt_of_shrink():
    assert run(_interrupt_shrink, 2) == [True, True]
