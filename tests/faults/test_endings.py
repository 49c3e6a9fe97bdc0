"""The end of a group reaches every rank: those that come late, that wait for somebody else, in whatever thread."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from ranks import Ranks, failure_of, run

import ringreduce
from tests.conftest import slowly


def _blamed(error):
    return type(error).__name__, error.rank


def _come_late(comm, board):
    x = np.ones(4, "float32")
    if comm.rank == 4:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1:
        time.sleep(0.4)  # it is connected to nobody until then
    error, _ = failure_of(lambda: comm.reduce(x, 0, algorithm="chain"))
    board.note(comm.rank)
    while not board.read(1):  # meanwhile the others do something else
        time.sleep(0.01)
    with comm.shrink() as rest:
        return _blamed(error), rest.size, float(rest.all_reduce(np.ones(1, "float32"))[0])


def test_who_comes_after_the_end_is_told_of_it():
    found = Ranks(_come_late, 5, timeout=15).outcomes()
    assert [found[rank].value for rank in range(4)] == [(("PeerLost", 4), 4, 4.0)] * 4, found


def _close_among_rooted_calls(comm, board, seed):
    random = np.random.default_rng(seed)
    ends_after = int(random.integers(1, 30))
    for number in range(200):
        root = int(random.choice([0, 1, 3]))
        count = int(random.choice([4, 1000, 40_000]))
        if comm.rank == 2 and number == ends_after:
            return None
        full = np.ones(comm.size * count, "float32") if comm.rank == root else None
        try:
            comm.scatter(full, root, out=np.ones(count, "float32"))
        except ringreduce.Error as error:
            return _blamed(error)
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("seed", [0, 1, 2, *slowly(*range(3, 8))])
def test_a_rank_closes_while_others_go_on_with_rooted_calls(seed):
    found = run(_close_among_rooted_calls, 4, seed, timeout=100)
    assert found == [("PeerLost", 2), ("PeerLost", 2), None, ("PeerLost", 2)]


def _leave_in_the_middle(comm, board, algorithm):
    x = np.ones(100_000, "float32")
    comm.all_reduce(x)
    if comm.rank == 1:
        time.sleep(4)
        board.note(1)
        return _blamed(failure_of(lambda: comm.all_reduce(x, algorithm=algorithm))[0])
    threading.Timer(0.2, comm._c.leave).start()
    with pytest.raises(ringreduce.ClosedError):
        comm.all_reduce(x, algorithm=algorithm)
    return board.read(1)


@pytest.mark.parametrize("algorithm", ["ring", *slowly("one_shot", "tree")])
def test_leaving_ends_a_collective_of_another_thread(algorithm):
    # The other rank has not come by then.
    assert run(_leave_in_the_middle, 2, algorithm) == [0, ("PeerLost", 0)]


def _submit_while_leaving(comm, board):
    x = np.ones(1, "float32")
    for _ in range(40):
        part = comm.split(0)
        leaving = threading.Thread(target=part._c.leave)
        leaving.start()
        try:
            for _ in range(50):
                part.all_reduce(x.copy(), async_op=True)
        except (ringreduce.ClosedError, ringreduce.PeerLost):
            pass
        leaving.join()
    return "ended well"


def test_calls_that_are_submitted_while_another_thread_leaves():
    assert run(_submit_while_leaving, 2) == ["ended well"] * 2


def _stop_in_the_middle(comm, board, kind):
    x = np.ones(1 << 18, "float32")
    comm.barrier()
    if comm.rank == 3:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    calls = {
        "all_reduce": lambda: comm.all_reduce(x, algorithm="ring"),
        "broadcast": lambda: comm.broadcast(x, 1, algorithm="chain"),
        "reduce": lambda: comm.reduce(x, 1, algorithm="chain"),
    }
    try:
        error, _ = failure_of(calls[kind])
    finally:
        board.note(comm.rank)
    return _blamed(error)


@pytest.mark.parametrize("kind", ["all_reduce", *slowly("broadcast"), "reduce"])
def test_a_timeout_names_the_rank_that_everybody_waits_for(kind):
    ranks = Ranks(_stop_in_the_middle, 5, kind, timeout=2.0)
    survivors = [0, 1, 2, 4]
    ranks.wait_until_all(lambda rank: rank == 3 or ranks.board.read(rank) != 0)
    ranks.kill(3)
    found = ranks.outcomes()
    assert [found[rank].value for rank in survivors] == [("TimeoutError", 3)] * 4, found


def _be_sent_to_while_stopped(comm, board):
    if comm.rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    if comm.rank == 0:  # its own time is up last
        time.sleep(0.5)

    def calls():
        comm.scatter(np.ones(5, "float32"), out=np.empty(1, "float32"), algorithm="direct")
        comm.barrier()

    try:
        error, _ = failure_of(calls)
    finally:
        board.note(comm.rank)
    return _blamed(error)


def test_a_timeout_names_the_stopped_rank_and_not_the_one_that_sends_to_it():
    """Nothing of the message leaves the sender, who is not even connected, but for the network's own queues."""
    ranks = Ranks(_be_sent_to_while_stopped, 5, timeout=2.0)
    ranks.wait_until_all(lambda rank: rank == 3 or ranks.board.read(rank) != 0)
    ranks.kill(3)
    found = ranks.outcomes()
    assert [found[rank].value for rank in (0, 1, 2, 4)] == [("TimeoutError", 3)] * 4, found


def test_ranks_use_the_transport_that_the_test_is_about(transport, request):
    assert set(run(lambda comm, board: comm.transport, 2)) == {request.node.callspec.params["transport"]}
