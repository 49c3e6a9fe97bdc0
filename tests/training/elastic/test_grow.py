"""Groups that let newcomers in."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import ringreduce
from tests.training.elastic.ranks import Job, await_newcomers, described, grown_by, kill_self


def everyone(size, first=0):
    """What described() says on all ranks."""
    return [(rank, size, float(size)) for rank in range(first, size)]


def _let_in(number):
    def member(me):
        with me.init() as comm:
            await_newcomers(comm, number)
            with comm.grow() as grown:
                assert grown.rank == me.number
                return described(grown), described(comm)  # which is as it was

    return member


def _come(me):
    with me.join() as comm:
        return described(comm)


@pytest.mark.parametrize(("members", "newcomers"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_newcomers_come_in(members, newcomers):
    values = Job(_let_in(newcomers), members, _come, newcomers).values()
    size = members + newcomers
    assert [value[0] for value in values[:members]] == everyone(size)[:members]
    assert [value[1] for value in values[:members]] == everyone(members)
    assert sorted(values[members:]) == everyone(size, members)


def test_without_newcomers_the_ranks_stay():
    def member(me):
        with me.init() as comm, comm.grow() as same:
            return same is comm, described(same)

    assert Job(member, 2).values() == [(False, each) for each in everyone(2)]


def test_a_group_grows_again_and_again():
    def member(me):
        comm = me.init()
        for _ in range(3):
            await_newcomers(comm, 1)
            before, comm = comm, comm.grow()
            before.close()
            me.board.note(0, 1, comm.size)
        with comm:
            return described(comm)

    def newcomer(me):
        while me.board.read(0, 1) < me.number and me.number > me.members:
            time.sleep(0.001)
        comm = me.join()
        while comm.size < 5:
            await_newcomers(comm, 1)
            before, comm = comm, comm.grow()
            before.close()
        with comm:
            return described(comm)

    assert Job(member, 2, newcomer, 3).values() == everyone(5)


def test_any_rank_can_have_died_before():
    """Those that come while nobody is at the door wait for the next one."""

    def member(me):
        comm = me.init()
        comm.pending()
        me.note()
        if me.number == 0:
            me.wait_for(3, 0)
            kill_self()
        with pytest.raises(ringreduce.PeerLost) as caught:
            while True:
                comm.pending()
        assert caught.value.rank == 0
        with comm.shrink() as fewer:
            return grown_by(fewer, 2)

    def newcomer(me):
        me.wait_for(0)
        me.note()
        return _come(me)

    values = Job(member, 3, newcomer, 2).values(but=(0,))
    assert values[1:3] == everyone(4)[:2] and sorted(values[3:]) == everyone(4, 2)


def test_a_survivor_keeps_the_door():
    """Newcomers stay connected to it."""

    def member(me):
        comm = me.init()
        await_newcomers(comm, 1)
        if me.number == 2:
            kill_self()
        with pytest.raises(ringreduce.PeerLost):
            while True:
                comm.barrier()
        with comm.shrink() as fewer:
            with pytest.raises(ringreduce.Error, match="a newer group"):
                comm.pending()
            assert fewer.pending() == 1
            with fewer.grow() as grown:
                return described(grown)

    assert Job(member, 3, _come, 1).values(but=(2,)) == [(0, 3, 3.0), (1, 3, 3.0), None, (2, 3, 3.0)]


def test_one_that_died_at_the_door_is_not_counted():
    def member(me):
        with me.init() as comm:
            await_newcomers(comm, 2)
            me.note()
            return grown_by(comm, 1)

    def newcomer(me):
        if me.number == 2:
            threading.Thread(target=lambda: (me.wait_for(0), os.kill(os.getpid(), signal.SIGKILL))).start()
        return _come(me)

    assert Job(member, 2, newcomer, 2).values(but=(2,)) == [(0, 3, 3.0), (1, 3, 3.0), None, (2, 3, 3.0)]


def test_a_child_of_the_member_at_the_door_does_not_keep_it():
    """As a data loader's worker would, which outlives the rank for a while."""

    def member(me):
        comm = me.init()
        comm.pending()
        if me.number == 0:
            if os.fork() == 0:
                me.wait_for(1)
                os._exit(0)
            kill_self()
        with pytest.raises(ringreduce.PeerLost):
            while True:
                comm.barrier()
        with comm.shrink() as fewer:
            await_newcomers(fewer, 1)
            me.note()
            with fewer.grow() as grown:
                return described(grown)

    assert Job(member, 2, _come, 1).values(but=(0,))[1:] == everyone(2)


def test_nothing_is_left_behind():
    def open_here():
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task"))

    def member(me):
        ringreduce.empty(1)  # makes what a process has one of
        before = open_here()
        with me.init() as comm:
            await_newcomers(comm, 1)
            with comm.grow() as grown:
                described(grown)
        ringreduce.finalize()
        del comm, grown
        until = time.monotonic() + 10
        while open_here() != before and time.monotonic() < until:
            time.sleep(0.01)
        return open_here(), before

    values = Job(member, 2, _come, 1).values()
    assert all(after == before for after, before in values[:2]), values


def test_a_door_in_use_is_an_error_and_the_group_goes_on():
    def member(me):
        with me.init() as comm, ringreduce.init(0, 1, me.name + "/other") as other:
            assert comm.pending() == 0
            other._new_growth = comm._new_growth
            with pytest.raises(ringreduce.Error, match="cannot open a door for newcomers"):
                other.grow(timeout=0.2)
            return described(other)

    assert Job(member, 1).values() == everyone(1)
