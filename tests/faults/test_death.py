"""A rank dies, anywhere: every survivor learns it, and by whom, within a second."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest
from ranks import Boom, Ranks, assert_lost, die, failure_of

import ringreduce
from tests.conftest import slow_rows, slowly

LARGE = 3 << 20  # elements: a collective takes long enough to be hit in its middle


def _loop(comm, kind, algorithm="auto"):
    """A call to repeat, as the name says."""
    size, rank = comm.size, comm.rank
    x = np.ones(LARGE if "large" in kind else 2, "float32")
    right, left = (rank + 1) % size, (rank - 1) % size

    def exchange():
        if rank % 2 == 0:
            comm.send(x, right)
            comm.recv(x, left)
        else:
            y = x.copy()
            comm.recv(y, left)
            comm.send(x, right)

    def two_at_once():
        works = [comm.all_reduce(x, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()

    return {
        "all_reduce": lambda: comm.all_reduce(x, "sum", algorithm=algorithm),
        "large all_reduce": lambda: comm.all_reduce(x, "sum", algorithm=algorithm),
        "async large all_reduce": two_at_once,
        "large broadcast": lambda: comm.broadcast(x, 0),
        "barrier": comm.barrier,
        "exchange": exchange,
        "large exchange": exchange,
        "split": lambda: comm.split(0).close(),
    }[kind]


def _last_words(comm, call):
    error, at = failure_of(call)
    with pytest.raises(type(error)) as again:  # the communicator refuses work with the same cause
        comm.all_reduce(np.ones(1, "float32"))
    assert again.value.rank == error.rank
    return error, at


def _loop_until_failure(comm, board, kind, algorithm="auto"):
    call = _loop(comm, kind, algorithm)
    for _ in range(2):
        call()
    board.note(comm.rank)
    return _last_words(comm, call)


KINDS = [
    ("all_reduce", "auto", 2),
    ("all_reduce", "tree", 4),
    ("large all_reduce", "ring", 3),
    ("large all_reduce", "two_shot", 4),
    ("async large all_reduce", "auto", 3),
    ("large broadcast", "auto", 4),
    ("barrier", "auto", 4),
    ("large exchange", "auto", 4),
    ("split", "auto", 3),
    *slow_rows(("large all_reduce", "tree", 3), ("large all_reduce", "one_shot", 2), ("exchange", "auto", 2)),
]


@pytest.mark.parametrize(("kind", "algorithm", "count"), KINDS)
@pytest.mark.parametrize("victim", [*slowly(0), 1])
def test_killed_amid_calls(kind, algorithm, count, victim):
    ranks = Ranks(_loop_until_failure, count, kind, algorithm)
    ranks.wait_for()
    time.sleep(0.013 * (victim + 1))
    ranks.kill(victim)
    assert_lost(ranks.outcomes(), ranks.dead)


def _loop_at_unequal_priority(comm, board, kind):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if comm.rank % 2 == 0:
        os.nice(19)
    return _loop_until_failure(comm, board, kind)


@pytest.mark.slow
def test_the_dead_rank_is_named_if_a_rank_is_preempted_while_it_tells():
    """The ranks that it woke take its core, fail and close before it has told the others."""
    for n in range(40):
        ranks = Ranks(_loop_at_unequal_priority, 8, "large exchange")
        ranks.wait_for()
        time.sleep(0.05 * random.Random(n).random())
        ranks.kill(1)
        assert_lost(ranks.outcomes(), ranks.dead)


def _die_between(comm, board, how, victim):
    x = np.ones(100, "float32")
    comm.all_reduce(x)
    if comm.rank == victim:
        die(how, board, comm.rank)
    return _last_words(comm, lambda: comm.all_reduce(x))


@pytest.mark.parametrize("how", ["exception", "exit", "kill", "segv"])
@pytest.mark.parametrize("count", [*slowly(2), 3, *slowly(4)])
def test_ways_to_die(how, count):
    victim = count - 1
    ranks = Ranks(_die_between, count, how, victim)
    found = ranks.outcomes()
    assert_lost(found, {victim: ranks.board.read(victim, 3)})
    if how == "exception":
        assert isinstance(found[victim].error, Boom)
    else:
        assert found[victim] is None


def _die_before(comm, board):
    if comm.rank == 1:
        die("kill", board, 1)
    return _last_words(comm, comm.barrier)


def test_dies_before_the_first_call():
    ranks = Ranks(_die_before, 3)
    assert_lost(ranks.outcomes(), {1: ranks.board.read(1, 3)})


def test_two_die():
    ranks = Ranks(_loop_until_failure, 4, "large all_reduce", "ring")
    ranks.wait_for()
    ranks.kill(3)
    ranks.kill(1)
    assert_lost(ranks.outcomes(), ranks.dead)


def _compute_then_call(comm, board):
    comm.barrier()
    if comm.rank == 1:
        die("kill", board, 1)
    if comm.rank == 2:
        time.sleep(0.5)  # comes late, to a group that has failed
    return _last_words(comm, comm.barrier)


def test_rank_that_comes_later_learns_it_at_once():
    ranks = Ranks(_compute_then_call, 3)
    assert_lost(ranks.outcomes(), {1: ranks.board.read(1, 3)})


def _receive_beside_collective(comm, board):
    import threading

    x, y = np.ones(LARGE, "float32"), np.ones(4, "float32")
    comm.barrier()
    work = comm.all_reduce(x, async_op=True)
    if comm.rank == 1:
        threading.Timer(0.02, die, ("kill", board, 1)).start()
        time.sleep(60)
    error, at = failure_of(lambda: comm.recv(y, 1))
    with pytest.raises(ringreduce.PeerLost):
        for _ in range(100):
            work = comm.all_reduce(x, async_op=True)
            work.wait()
    return error, max(at, time.monotonic())


@pytest.mark.parametrize("count", [2, 3])
def test_waits_of_several_threads_end(count):
    ranks = Ranks(_receive_beside_collective, count)
    assert_lost(ranks.outcomes(), {1: ranks.board.read(1, 3)})


def _die_during_init(board, rank, victim, calls, store):
    """Dies in the n-th exchange."""
    made = 0

    def exchange(blob):
        nonlocal made
        made += 1
        if rank == victim and made == calls:
            die("kill", board, rank)
        return store.exchange(blob)

    return exchange


def _init_by_hand(rank, count, name, board, victim, calls, pipe):
    import pickle

    from ringreduce.start.rendezvous import gathering

    try:
        group = gathering.join(name, rank, count, time.monotonic() + 20)
        ringreduce.init(rank, count, _die_during_init(board, rank, victim, calls, group), timeout=20)
        outcome = None
    except ringreduce.Error as error:
        outcome = (error, time.monotonic())
    pipe.send_bytes(pickle.dumps(outcome))


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("calls", [1, 2])
def test_dies_during_init(victim, calls):
    import multiprocessing
    import pickle
    import secrets

    from ranks import Board, Outcome

    board, name = Board(), secrets.token_hex(8)
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for rank in range(3):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_init_by_hand, args=(rank, 3, name, board, victim, calls, sending))
        process.start()
        sending.close()
        pipes.append(receiving)
        processes.append(process)
    found = []
    for rank, pipe in enumerate(pipes):
        assert pipe.poll(20)
        found.append(None if rank == victim else Outcome(pickle.loads(pipe.recv_bytes())))
    for process in processes:
        process.join()
    assert_lost(found, {victim: board.read(victim, 3)})
