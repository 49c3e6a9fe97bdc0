"""Ranks that are killed: the others go on with the right values, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import ringreduce
from tests.conftest import slowly
from tests.faults.ranks import Ranks
from tests.training.parameter_server.models import backward, counting, network, same, values

LARGE = 1 << 18  # elements a row: a push takes long enough to be hit in its middle
BEGUN, ACKNOWLEDGED, AT_THE_END = 0, 1, 2  # places on the board


def _count(comm, board, staleness, servers, width, steps):
    """Steps at least so often, and then until rank 0 sees that somebody is lost."""
    workers = comm.size - (servers or 0)
    model, server = counting(comm, workers, staleness, width, servers=servers)
    try:
        if comm.rank not in server.workers:
            board.note(comm.rank, BEGUN)
            return server.serve()
        step = 0
        while step < steps:
            model.count(comm.rank)
            board.note(comm.rank, BEGUN, step + 1)
            server.step()
            step += 1
            board.note(comm.rank, ACKNOWLEDGED, step)
            if step == steps - 10:  # the rest comes after the death, which all notice in their next steps
                until = time.monotonic() + 20
                while not board.read(7, AT_THE_END) and time.monotonic() < until:
                    time.sleep(0.001)
        server._client.ask(
            -1, 10_000 * workers + server.workers.index(comm.rank)
        ) if staleness is None else None
        server._client.pull(server._values)
        found = model.least(), model.most(), sorted(server.lost)
        server.close()
        return found
    except BaseException as error:
        board.note(comm.rank, AT_THE_END, -1)
        return error


def _killed(count, victim, how_many_steps, *args):
    """Runs and kills one, as soon as every rank has begun that many steps."""
    ranks = Ranks(_count, count, *args, timeout=100)
    ranks.wait_until_all(lambda rank: ranks.board.read(rank, BEGUN) >= how_many_steps(rank))
    ranks.kill(victim)
    ranks.board.note(7, AT_THE_END)
    return ranks, ranks.outcomes()


def _check(ranks, found, survivors, victim, steps):
    """Every survivor's steps were counted, and the victim's as far as they were acknowledged."""
    for rank in survivors:
        outcome = found[rank]
        assert outcome is not None and outcome.error is None, outcome
        assert not isinstance(outcome.value, BaseException), repr(outcome.value)
        least, most, lost = outcome.value
        # Dedicated servers notice the deaths of workers, and workers those of servers.
        assert lost in ([victim], [])
        assert least[rank] == most[rank] == steps, "of its own"
        if victim < len(least):
            assert ranks.board.read(victim, ACKNOWLEDGED) <= least[victim]
            assert most[victim] <= ranks.board.read(victim, BEGUN)


@pytest.mark.parametrize("staleness", [2, *slowly(None)])
@pytest.mark.parametrize("victim", [3, *slowly(0, 1)])
def test_a_rank_that_works_and_serves_is_killed_amid_a_push(staleness, victim):
    """Rank 0 hands out the tickets, too."""
    ranks, found = _killed(4, victim, lambda _: 2, staleness, None, LARGE // 16, 30)
    assert found[victim] is None
    _check(ranks, found, {0, 1, 2, 3} - {victim}, victim, 30)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_is_killed(victim):
    ranks, found = _killed(4, victim, lambda rank: 3 if rank < 3 else 0.1, 1, 1, LARGE // 8, 25)
    _check(ranks, found, {0, 1, 2} - {victim}, victim, 25)


@pytest.mark.parametrize("victim", [3, *slowly(4)])
def test_a_server_is_killed(victim):
    """The first one hands out the tickets."""
    ranks, found = _killed(5, victim, lambda rank: 3 if rank < 3 else 0.1, 2, 2, LARGE // 8, 25)
    _check(ranks, found, {0, 1, 2}, victim, 25)


def _shared(comm, board, count, victim, staleness, kind):
    torch.set_num_threads(1)
    model, server = counting(comm, count, staleness, 200) if kind == "counts" else (network(), None)
    if server is None:
        server = ringreduce.ParameterServer(comm, model, torch.optim.SGD, lr=0.1, staleness=staleness)
    if comm.rank == victim:
        push = server._client._receive

        def die_after_the_first_answer(message, *rest):  # some shards have the gradient, others not
            answer = push(message, *rest)
            if message.kind.name == "PUSH" and message.ticket >= 2 * comm.size:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        server._client._receive = die_after_the_first_answer
    for batch in server.batches(count):
        server.zero_grad()
        model.count(batch) if kind == "counts" else backward(model, *divmod(batch, comm.size))
        server.step()
    found = (model.least(), model.most()) if kind == "counts" else values(model)
    server.close()
    return found


@pytest.mark.parametrize("victim", [0, *slowly(2)])
@pytest.mark.parametrize("staleness", [*slowly(1), None])
def test_a_shared_batch_is_done_once_although_its_worker_died_amid_the_push(victim, staleness):
    found = Ranks(_shared, 4, 40, victim, staleness, "counts", timeout=100).outcomes()
    assert found[victim] is None
    for rank in {0, 1, 2, 3} - {victim}:
        assert found[rank].error is None, repr(found[rank].error)
        assert found[rank].value == ([1] * 40, [1] * 40)


def test_with_staleness_0_shared_batches_give_the_same_bits_in_spite_of_a_death():
    undisturbed = Ranks(_shared, 3, 30, None, 0, "network", timeout=100).outcomes()
    disturbed = Ranks(_shared, 3, 30, 1, 0, "network", timeout=100).outcomes()
    assert disturbed[1] is None
    for rank in (0, 2):
        assert disturbed[rank].error is None, repr(disturbed[rank].error)
        assert same(disturbed[rank].value, undisturbed[rank].value)


def _one_after_another(comm, board, copies):
    model, server = counting(comm, 1, None, servers=comm.size - 1, copies=copies)
    if comm.rank:
        board.note(comm.rank)
        return server.serve()
    for step in range(40):
        board.note(0, 0, step + 1)
        model.count(0)
        try:
            server.step()
        except ringreduce.PeerLost as error:
            return step, error.rank, str(error)
        if step in (10, 20):
            board.note(0, ACKNOWLEDGED, step)
            until = time.monotonic() + 20
            while not board.read(7, step // 10) and time.monotonic() < until:
                time.sleep(0.001)
    found = model.least(), model.most()
    server.close()
    return found


def test_servers_die_one_after_another():
    """After each death the next servers make new copies."""
    ranks = Ranks(_one_after_another, 4, True, timeout=100)
    for turn, victim in ((1, 1), (2, 2)):
        ranks.wait_until_all(
            lambda rank, turn=turn: rank != 0 or ranks.board.read(0, ACKNOWLEDGED) >= 10 * turn
        )
        ranks.kill(victim)
        ranks.board.note(7, turn)
        time.sleep(0.1)
        # Those that are waited for must not have ended.
    found = ranks.outcomes()
    assert found[0].error is None, repr(found[0].error)
    assert found[0].value == ([40], [40])


def test_without_copies_a_lost_server_ends_the_training_with_its_rank():
    ranks = Ranks(_one_after_another, 3, False, timeout=100)
    ranks.wait_until_all(lambda rank: rank != 0 or ranks.board.read(0, ACKNOWLEDGED) >= 10)
    ranks.kill(1)
    ranks.board.note(7, 1)
    found = ranks.outcomes()
    step, rank, text = found[0].value
    assert (step, rank) == (11, 1)
    assert "there are no copies" in text


def _interrupted(comm, board):
    model, server = counting(comm, comm.size, 1)
    try:
        for step in range(1000):
            if comm.rank == 1 and step == 5:  # goes on, and waits for rank 0 in the end
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            if comm.rank == 0 and step == 6:
                until = time.monotonic() + 20
                while not server.lost and time.monotonic() < until:
                    time.sleep(0.01)
                return sorted(server.lost), server.close()
            model.count(comm.rank)
            server.step()
    except KeyboardInterrupt:
        return "interrupted"


def test_an_interrupt_ends_a_wait_and_the_others_learn_of_it():
    found = Ranks(_interrupted, 2, timeout=100).outcomes()
    assert found[1].value == "interrupted", found[1]
    assert found[0].value[0] == [1]


def _leftovers(comm, board, servers):
    torch.set_num_threads(1)  # other threads do not survive a fork

    def counted():
        threads = {
            thread.name for thread in threading.enumerate() if thread.name.startswith("parameter server")
        }
        return len(list(Path("/proc/self/fd").iterdir())), threads

    for turn in range(4):
        if turn == 1:
            before = counted()
        with ringreduce.ParameterServer(
            comm.split(0), network(), torch.optim.SGD, lr=0.1, staleness=1, servers=servers, overlap=True
        ) as server:
            if comm.rank not in server.workers:
                server.serve()
                continue
            for step in range(3):
                server.zero_grad()
                backward(network(), step, 0)
                server.step()
    import gc

    gc.collect()
    return before, counted()


@pytest.mark.parametrize("servers", [None, *slowly(1)])
def test_nothing_is_left_behind(servers):
    for outcome in Ranks(_leftovers, 3, servers, timeout=100).outcomes():
        assert outcome.error is None, repr(outcome.error)
        (before, threads), (after, left) = outcome.value
        assert left == threads == set()
        assert after <= before + 3, "a communicator of split may wait for the collector"


def _silent(comm, board):
    model, server = counting(comm, comm.size - 1, 1, servers=1)
    if comm.rank not in server.workers:
        return server.serve(), sorted(server.lost)
    for step in range(6):
        if comm.rank == 1 and step == 3:
            board.note(1)
            os.kill(os.getpid(), signal.SIGSTOP)
        model.count(comm.rank)
        server.step()
    found = model.least(), model.most()
    server.close()
    return found


def test_a_worker_that_says_nothing_for_the_timeout_counts_as_lost():
    ranks = Ranks(_silent, 3, timeout=6.0)
    ranks.wait_until_all(lambda rank: rank != 1 or ranks.board.read(1) > 0)
    until = time.monotonic() + 60
    while ranks.processes[0].is_alive() and time.monotonic() < until:
        time.sleep(0.05)
    ranks.kill(1)
    found = ranks.outcomes()
    assert found[0].error is None, repr(found[0].error)
    assert found[0].value == ([6, 3], [6, 3])
    assert found[2].value == (None, [1])
