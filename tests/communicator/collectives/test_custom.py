"""Schedules written in Python, some with what the catalogue's algorithms avoid."""

from __future__ import annotations

import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest

import ringreduce
from ringreduce import Local, Recv, Round, Schedule, Send
from tests.conftest import on_processes, on_threads, whole_numbers

SIZES = [1, 5, 70_000, 300_001]


def everybody(world: int, rank: int) -> Schedule:
    others = [r for r in range(world) if r != rank]
    if not others:
        return Schedule("all_reduce", world, rank, 1)
    step = Round([Send([0], others)], [Recv([0], r, reduce=True) for r in others])
    return Schedule("all_reduce", world, rank, 1, [step])


def saved_from_a_message(world: int, rank: int) -> Schedule:
    """Two ranks swap values; each saves its own in the very round in which the other's replaces it."""
    swap = Round([Send([0], [1 - rank])], [Recv([0], 1 - rank)], [Local(1, 0)])
    pair = [Local(0, 1, reduce=True)]
    return Schedule("all_reduce", world, rank, 1, [swap, Round(locals=pair)], scratch=1)


def run_across_the_end(world: int, rank: int) -> Schedule:
    """One run of chunks reaches from the user's last one into scratch."""
    peer = 1 - rank
    rounds = [
        Round(locals=[Local(2, 0)]),
        Round([Send([(1, 2)], [peer])], [Recv([(3, 2)], peer)]),
        Round(locals=[Local(1, 3, reduce=True), Local(0, 4, reduce=True)]),
    ]
    return Schedule("all_reduce", world, rank, 2, rounds, scratch=3)


def late_reader(world: int, rank: int) -> Schedule:
    """Rank 0 lends to rank 2, then to rank 1, which answers while rank 2 may still be reading."""
    rounds = {
        0: [Round([Send([0], [2])]), Round([Send([0], [1])]), Round(recvs=[Recv([0], 1)])],
        1: [
            Round([Send([0], [2])], [Recv([0], 2, reduce=True)]),
            Round(recvs=[Recv([0], 0, reduce=True)]),
            Round([Send([0], [0])]),
        ],
        2: [
            Round([Send([0], [1])], [Recv([0], 1, reduce=True)]),
            Round(recvs=[Recv([1], 0)]),
            Round(locals=[Local(0, 1, reduce=True)]),
        ],
    }
    return Schedule("all_reduce", world, rank, 1, rounds[rank], scratch=1)


def other_answer_first(world: int, rank: int) -> Schedule:
    """Rank 0 sends its value to rank 1. The first answer goes elsewhere, the second replaces the value."""
    rounds = {
        0: [
            Round([Send([0], [1])]),
            Round(recvs=[Recv([1], 1)]),
            Round(recvs=[Recv([0], 1)]),
            Round(locals=[Local(0, 1, reduce=True)]),
        ],
        1: [
            Round(recvs=[Recv([1], 2)]),
            Round(recvs=[Recv([0], 0, reduce=True)]),
            Round([Send([0], [0])]),
            Round([Send([1], [0])]),
            Round([Send([0], [2])]),
            Round(locals=[Local(0, 1, reduce=True)]),
        ],
        2: [Round([Send([0], [1])]), Round(recvs=[Recv([0], 1, reduce=True)])],
    }
    return Schedule("all_reduce", world, rank, 1, rounds[rank], scratch=1)


def check(function, world, shared):
    def rank_main(comm):
        for count in SIZES:
            for in_place in (True, False):
                x = ringreduce.empty(count) if shared else np.empty(count, "float32")
                x[:] = whole_numbers(count, comm.rank)
                out = x if in_place else np.full(count, 99, "float32")
                for _ in range(2):
                    x[:] = whole_numbers(count, comm.rank)
                    comm.all_reduce(x, out=out, algorithm=function)
                    np.testing.assert_array_equal(out, sum(whole_numbers(count, r) for r in range(world)))
                    comm.barrier()

    on_threads(world, rank_main)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_any_world(world):
    check(everybody, world, shared=False)


@pytest.mark.parametrize("function", [saved_from_a_message, run_across_the_end])
def test_of_two(function):
    check(function, 2, shared=True)


@pytest.mark.parametrize("function", [late_reader, other_answer_first])
def test_of_three(function):
    check(function, 3, shared=True)


def test_by_registered_name():
    ringreduce.register("all_at_once", everybody)
    x = whole_numbers(1000, 1)
    results = on_threads(3, lambda comm: comm.all_reduce(x.copy(), algorithm="all_at_once"))
    assert all((result == 3 * x).all() for result in results)


def test_registering_again_replaces():
    def rank_main(comm):
        x = np.ones(10, "float32")
        comm.all_reduce(x, algorithm="again")
        if comm.rank == 0:
            ringreduce.register("again", lambda world, rank: 1 / 0)
        comm.barrier()
        with pytest.raises(ringreduce.ScheduleError, match="raised ZeroDivisionError"):
            comm.all_reduce(x, algorithm="again")

    ringreduce.register("again", everybody)
    on_threads(2, rank_main)


def from_rank_0(world: int, rank: int) -> Schedule:
    if rank:
        return Schedule("broadcast", world, rank, 1, [Round(recvs=[Recv([0], 0)])])
    return Schedule("broadcast", world, rank, 1, [Round([Send([0], list(range(1, world)))])])


def test_the_root_must_be_the_schedules_root():
    def rank_main(comm):
        x = np.full(10, comm.rank, "float32")
        with pytest.raises(ValueError, match="root"):
            comm.broadcast(x, root=1, algorithm=from_rank_0)
        comm.broadcast(x, root=0, algorithm=from_rank_0)
        assert (x == 0).all()

    on_threads(2, rank_main)


def from_the_root(world: int, rank: int, root: int) -> Schedule:
    others = [each for each in range(world) if each != root]
    if rank == root:
        return Schedule("broadcast", world, rank, 1, [Round([Send([0], others)])], root)
    return Schedule("broadcast", world, rank, 1, [Round(recvs=[Recv([0], root)])], root)


def test_an_algorithm_that_takes_a_root_gets_the_calls():
    def rank_main(comm):
        for root in (2, 0, 2):
            x = np.full(10, comm.rank, "float32")
            comm.broadcast(x, root=root, algorithm="from the root")
            assert (x == root).all()
        with pytest.raises(ValueError, match="root must be"):
            comm.broadcast(x, root=3, algorithm=from_the_root)

    ringreduce.register("from the root", from_the_root, "broadcast")
    on_threads(3, rank_main)


def test_an_algorithm_that_takes_hosts_gets_the_groups():
    seen = []

    def everywhere(world, rank, *, hosts):
        seen.append(hosts)
        return everybody(world, rank)

    ringreduce.register("everywhere", everywhere)
    on_threads(3, lambda comm: comm.all_reduce(np.ones(3), algorithm="everywhere"))
    assert seen and all(hosts == [[0, 1, 2]] for hosts in seen)


@pytest.mark.parametrize(("machines", "hosts"), [("001", [[0, 1], [2]]), ("010", [[0, 2], [1]])])
def test_ranks_of_several_hosts_know_who_shares_one(machines, hosts):
    def on_a_machine(comm):
        os.environ["RINGREDUCE_HOST"] = f"machine {machines[comm.rank]}"
        with ringreduce.init(comm.rank, comm.size, comm.all_gather_object, transport="shm+tcp") as group:
            return rank_main(group)

    def rank_main(comm):
        seen = []

        def everywhere(world, rank, hosts):
            seen.append(hosts)
            return everybody(world, rank)

        total = comm.all_reduce(np.ones(3), algorithm=everywhere)
        return comm.transport, comm.hosts, seen[0], total.tolist()

    found = on_processes(3, on_a_machine)
    assert found == [("shm+tcp", hosts, hosts, [3.0, 3.0, 3.0])] * 3


def test_wrong_algorithms_are_refused_before_anything_is_sent():
    def forgets(world, rank):
        return Schedule("all_reduce", world, rank, 1)

    def rank_main(comm):
        x = np.ones(10, "float32")
        with pytest.raises(ringreduce.ScheduleError):
            comm.all_reduce(x, algorithm=forgets)
        with pytest.raises(ValueError):
            comm.all_reduce(x, algorithm=from_rank_0)
        assert (comm.all_reduce(x) == 2).all()

    on_threads(2, rank_main)


class Bug(Exception):
    """What an algorithm raises."""


def raises(world, rank):
    raise Bug("of its author")


def without_rounds(world, rank):
    return Schedule("all_reduce", world, rank, 1, [None])


@pytest.mark.parametrize(
    ("function", "cause", "says"),
    [
        (raises, Bug, "algorithm 'raises', called for rank 0 of 2, raised Bug: of its author"),
        (lambda world, rank: None, None, "called for rank 0 of 2, must return a Schedule, not NoneType"),
        (lambda world, rank: 17, None, "must return a Schedule, not int"),
        (without_rounds, AttributeError, "algorithm 'without_rounds' returned an invalid schedule"),
    ],
)
def test_what_an_algorithm_does_wrong_is_told(function, cause, says):
    """As with every bad argument, the group goes on."""

    def rank_main(comm):
        x = np.ones(4, np.float32)
        with pytest.raises(ringreduce.ScheduleError, match=re.escape(says)) as raised:
            comm.all_reduce(x, algorithm=function)
        assert type(raised.value.__cause__) is (cause or type(None))
        assert (comm.all_reduce(x) == 2).all()

    on_threads(2, rank_main)


def fails_on_rank_one(world, rank):
    if multiprocessing.current_process().name == "rank 1":
        raise Bug
    return ringreduce.schedule("all_reduce", "ring", world, rank)


def errors_of_the_others(comm):
    try:
        comm.all_reduce(np.ones(4, np.float32), algorithm=fails_on_rank_one)
    except ringreduce.Error as error:
        Path(os.environ["ERRORS"], str(comm.rank)).write_text(f"{type(error).__name__} of rank {error.rank}")
        raise


def test_an_algorithm_that_fails_on_one_rank(tmp_path, monkeypatch):
    """It is that rank's error that run() raises, and the others learn which rank it was, and not by a timeout."""
    monkeypatch.setenv("ERRORS", str(tmp_path))
    with pytest.raises(ringreduce.RankFailed) as raised:
        on_processes(3, errors_of_the_others)
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, ringreduce.ScheduleError)
    assert "Bug" in str(raised.value)
    for rank in 0, 2:
        assert (tmp_path / str(rank)).read_text() == "PeerLost of rank 1"
