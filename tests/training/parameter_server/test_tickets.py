"""Tickets: the bound, the queue, and what becomes of lost workers' batches. No messages."""

from __future__ import annotations

import pickle
import random

import pytest

from ringreduce.parameter_server.tickets import END, Grant, Tickets


class Worker:
    """Asks as a worker does: for fixed tickets, or for shared ones up to ``until``."""

    def __init__(self, tickets: Tickets, number: int, until: int | None = None) -> None:
        self.tickets, self.number, self.until = tickets, number, until
        self.asks, self.computing = 0, number if until is None else END
        if until is not None:
            self.ask(END)

    def ask(self, confirmed: int) -> None:
        wanted = None if self.until is not None else confirmed + self.tickets.workers
        self.tickets.ask(self.number, self.asks, confirmed, wanted, self.until or END)
        self.asks += 1
        self.computing = END

    def answer(self) -> Grant | None:
        grant = self.tickets.answer(self.number, self.asks - 1) if self.asks else None
        if grant is not None:
            self.computing = grant.ticket
        return grant


def turns(workers: list[Worker], seed: int, count: int, done: list[int], die: float = 0.0) -> None:
    """Lets workers take turns in a random order, at random speeds. Notes each confirmed ticket."""
    chance = random.Random(seed)
    speeds = [chance.choice([1, 1, 4]) for _ in workers]
    alive = list(workers)
    for _ in range(count):
        worker = chance.choices(alive, [speeds[w.number] for w in alive])[0]
        if worker.computing == END:
            worker.answer()
            continue
        if len(alive) > 1 and chance.random() < die:
            worker.tickets.leave(worker.number)
            alive.remove(worker)
            continue
        done.append(worker.computing)
        worker.ask(worker.computing)


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_ticket_begins_before_all_of_the_clocks_before(staleness, shared, seed):
    tickets = Tickets(3, staleness)
    done: list[int] = []
    began = tickets._grant

    def checked(ticket: int) -> Grant:
        if ticket != END:
            assert set(range((ticket // 3 - staleness) * 3)) <= set(done)
        return began(ticket)

    tickets._grant = checked  # type: ignore[method-assign]
    turns([Worker(tickets, n, 60 if shared else None) for n in range(3)], seed, 400, done)
    assert len(done) == len(set(done)) >= 60


@pytest.mark.parametrize("staleness", [0, 2, None])
@pytest.mark.parametrize("seed", range(10))
def test_shared_batches_of_lost_workers_are_done_by_others(staleness, seed):
    tickets = Tickets(4, staleness)
    workers = [Worker(tickets, n, 30) for n in range(4)]
    done: list[int] = []
    turns(workers, seed, 1000, done, die=0.05)
    assert sorted(done) == list(range(30))
    assert any(worker.computing == END and worker.answer() for worker in workers)


@pytest.mark.parametrize("seed", range(5))
def test_fixed_tickets_of_lost_workers_hold_up_nobody(seed):
    tickets = Tickets(4, 1)
    done: list[int] = []
    turns([Worker(tickets, n) for n in range(4)], seed, 1000, done, die=0.02)
    assert max(done) > 100


def test_only_gradients_that_all_shards_have_are_counted():
    tickets = Tickets(3, 0)
    workers = [Worker(tickets, n) for n in range(3)]
    workers[0].ask(0)
    workers[2].ask(2)
    assert workers[0].answer() is None
    tickets.leave(1)  # amid its push
    assert workers[0].answer() == Grant(3, 1, [True, False, True], 3)
    workers[0].ask(3)
    workers[2].answer()
    workers[2].ask(5)
    assert workers[2].answer() == Grant(8, 2, [True, False, True], 6)


def test_a_slow_worker_holds_up_nobody_who_takes_other_batches():
    """Three times slower than three others: with fixed batches and any bound, others would wait in the end."""
    tickets = Tickets(4, 3)
    slow, *fast = [Worker(tickets, n, 1000) for n in range(4)]
    for worker in (slow, *fast):
        worker.answer()
    for turn in range(60):
        for worker in [*fast, *([slow] if turn % 3 == 2 else [])]:
            worker.ask(worker.computing)
            assert worker.answer() is not None


def test_a_copy_has_the_same_state_and_repeated_calls_change_nothing():
    tickets, copy = Tickets(3, 1), Tickets(3, 1)
    chance = random.Random(5)
    for number in range(20):
        for worker in chance.sample(range(3), 3):
            call = (worker, number, 3 * number + worker, 3 * number + worker + 3)
            tickets.ask(*call)
            for _ in range(1 + worker):
                copy.ask(*call)
    tickets.leave(1)
    copy.leave(1)
    copy.leave(1)
    assert pickle.loads(pickle.dumps(vars(tickets))) == vars(copy)


def test_a_second_round_of_batches_begins_with_a_new_clock():
    tickets = Tickets(2, 0)
    a, b = Worker(tickets, 0, 3), Worker(tickets, 1, 3)
    for worker in (a, b):
        worker.answer()
    a.ask(0)
    b.ask(1)
    assert a.answer() == Grant(2, 1, [True, True], 2)
    assert b.answer() is None
    a.ask(2)
    assert a.answer() == b.answer() == Grant(END, 2, [True, False], 4)
    a.until = b.until = 7
    a.ask(END)
    assert a.answer() == Grant(4, 2, [True, False], 4)
