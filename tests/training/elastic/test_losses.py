"""Members and newcomers that die while the group grows."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import ringreduce
from ringreduce.start.growing import growth, joining
from ringreduce.start.growing.origin import Origin
from tests.conftest import slowly
from tests.training.elastic.ranks import Job, await_newcomers, described, dies_at, go_on_until, kill_self

ANSWERS = 7  # of a newcomer in an attempt, over each transport


def _member(me):
    comm = me.init()
    await_newcomers(comm, 2)
    grown = comm.grow()
    comm.close()
    return go_on_until(grown, me.members + 1)


@pytest.mark.parametrize("moment", [2, *slowly(3, 4, 5, 6, 7), ANSWERS + 1, "confirmation"])
def test_a_newcomer_dies(moment):
    """When it would have given that answer; the first thing that it says is who it is."""

    def newcomer(me):
        if me.number == 2:
            if moment == "confirmation":
                dies_at(joining.Newcomer, "_confirmed", 1)
            else:
                dies_at(joining, "send", moment)
        return go_on_until(me.join(), 3)

    values = Job(_member, 2, newcomer, 2).values(but=(2,))
    assert values == [(0, 3, 3.0), (1, 3, 3.0), None, (2, 3, 3.0)]


@pytest.mark.parametrize("victim", [0, *slowly(1)])
@pytest.mark.parametrize("moment", [1, *slowly(2, 3, 4, 5, 6), ANSWERS, "vote", "end"])
def test_a_member_dies(victim, moment):
    def member(me):
        comm = me.init()
        await_newcomers(comm, 2)
        if me.number == victim:
            if moment == "vote":
                connect = growth._Attempt._connect
                growth._Attempt._connect = lambda attempt: (connect(attempt), kill_self())
            elif moment == "end":
                dies_at(ringreduce.Communicator, "barrier", 1)
            else:
                dies_at(growth._Attempt, "_meet", moment)
        return go_on_until(comm, 4, victim)

    def newcomer(me):
        return go_on_until(me.join(), 4)

    values = Job(member, 3, newcomer, 2).values(but=(victim,))
    assert sorted(value for value in values if value) == [(rank, 4, 4.0) for rank in range(4)]


def test_a_member_and_a_newcomer_die_at_once():
    def member(me):
        comm = me.init()
        await_newcomers(comm, 2)
        if me.number == 1:
            dies_at(growth._Attempt, "_meet", 3)
        return go_on_until(comm, 3, 1)

    def newcomer(me):
        if me.number == 3:
            dies_at(joining, "send", 4)
        return go_on_until(me.join(), 3)

    values = Job(member, 3, newcomer, 2).values(but=(1, 3))
    assert sorted(value for value in values if value) == [(rank, 3, 3.0) for rank in range(3)]


@pytest.mark.parametrize("lost", [True, False])
def test_one_member_grows_while_the_others_shrink(lost):
    """As happens if a rank dies in a collective that ends on some ranks only."""

    def member(me):
        comm = me.init()
        assert comm.pending() == 0
        me.note()
        if lost and me.number == 2:
            kill_self()
        for number in range(me.members):
            me.wait_for(number)
        named = None
        if me.number == 0 or lost:
            with pytest.raises(ringreduce.PeerLost) as error:
                comm.grow() if me.number == 0 else comm.all_gather_object(0)  # as in grow()
            named = error.value.rank
        with comm.shrink() as fewer, fewer.shrink() as fewest:
            return named, described(fewest)

    values = Job(member, 3).values(but=(2,) if lost else ())
    if lost:
        assert values == [(2, (0, 2, 2.0)), (2, (1, 2, 2.0)), None]
    else:
        assert values[0][0] in (1, 2)
        assert [found for _, found in values] == [(rank, 3, 3.0) for rank in range(3)]


def test_a_newcomer_that_stops_is_left_out(monkeypatch):
    """The group waits for its answer, but not as long as for its own ranks, and is well afterwards."""
    monkeypatch.setattr(growth, "_ANSWERS", 2.0)  # libfabric takes half a second to load

    def member(me):
        with me.init() as comm:
            await_newcomers(comm, 2)
            with comm.grow() as grown:
                me.note()
                return described(grown), described(comm)

    def newcomer(me):
        if me.number == 2:
            pid = os.getpid()
            if os.fork() == 0:
                me.wait_for(0)
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
            send, calls = joining.send, [0]

            def stopping(*args):
                calls[0] += 1
                if calls[0] == 4:
                    os.kill(pid, signal.SIGSTOP)
                send(*args)

            joining.send = stopping
        with me.join() as comm:
            return described(comm)

    values = Job(member, 2, newcomer, 2).values(but=(2,))
    assert values == [((0, 3, 3.0), (0, 2, 2.0)), ((1, 3, 3.0), (1, 2, 2.0)), None, (2, 3, 3.0)]


def test_a_member_that_does_not_come_is_named():
    def member(me):
        comm = me.init(timeout=20)
        comm.pending()
        if me.number == 1:
            me.wait_for(0)
            return None
        with pytest.raises(ringreduce.TimeoutError, match="timed out after 0") as caught:
            comm.grow(timeout=0.5)
        me.note()
        return caught.value.rank

    assert Job(member, 2).values() == [1, None]


def test_a_member_is_interrupted():
    """The others lose it, and the newcomer asks them."""

    def member(me):
        comm = me.init()
        await_newcomers(comm, 1)
        if me.number == 1:
            meet = growth._Attempt._meet
            calls = []

            def interrupted(attempt, own):
                calls.append(own)
                if len(calls) == 3:
                    raise KeyboardInterrupt
                return meet(attempt, own)

            growth._Attempt._meet = interrupted
            comm.pending()
            with pytest.raises(KeyboardInterrupt):
                comm.grow()
            return None
        return go_on_until(comm, 3, 1)

    def newcomer(me):
        return go_on_until(me.join(), 3)

    values = Job(member, 3, newcomer, 1).values()
    assert sorted(value for value in values if value) == [(rank, 3, 3.0) for rank in range(3)]


def test_a_loss_and_newcomers_at_any_time():
    """The kill comes whenever it comes, without any help from inside."""

    def member(me):
        comm = me.init()
        await_newcomers(comm, 2)
        if me.number == 1:
            delay = 0.002 * me.board.read(0, 3)
            threading.Thread(target=lambda: (time.sleep(delay), os.kill(os.getpid(), signal.SIGKILL))).start()
        return go_on_until(comm, 4, 1)

    def newcomer(me):
        return go_on_until(me.join(), 4)

    for turn in range(5):
        job = Job(member, 3, newcomer, 2)
        job.board.note(0, 3, turn + 1)
        values = job.values(but=(1,))
        assert sorted(value for value in values if value) == [(rank, 4, 4.0) for rank in range(4)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_newcomer_that_fails_has_one_more_chance(times):
    """It may only have noticed first that somebody else has died. Who fails again is told, and the group goes on."""

    def member(me):
        with me.init() as comm:
            await_newcomers(comm, 2)
            with comm.grow() as grown:
                return described(grown), described(comm)

    def newcomer(me):
        if me.number == 2:
            connect, calls = Origin.connect, []

            def failing(origin, rank, size, exchange, timeout):
                calls.append(rank)
                if len(calls) <= times:
                    raise ringreduce.PeerLost("rank 1 died, says this rank", 1)
                return connect(origin, rank, size, exchange, timeout)

            Origin.connect = failing
        try:
            with me.join() as comm:
                return described(comm)
        except ringreduce.Error as error:
            return str(error)

    *values, first, second = Job(member, 2, newcomer, 2).values()
    size = 5 - times
    assert values == [((rank, size, float(size)), (rank, 2, 2.0)) for rank in range(2)]
    if times == 1:
        assert sorted([first, second]) == [(2, 4, 4.0), (3, 4, 4.0)]
    else:
        assert "does not let this process in: rank 1 died, says this rank" in first and second == (2, 3, 3.0)
