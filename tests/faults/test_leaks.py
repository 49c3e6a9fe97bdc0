"""Groups that come and go leave no thread, no descriptor and no mapping behind."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
from ranks import run

import ringreduce
from tests.conftest import slowly
from tests.processes import held

CYCLES = 25


def _use(comm):
    x = np.ones(3)
    comm.all_reduce(x, async_op=True).wait()
    comm.all_reduce(np.ones(1 << 17))
    if comm.size > 1 and comm.rank < 2:
        comm.send(x, 0, async_op=True).wait() if comm.rank else comm.recv(x, 1, async_op=True).wait()


def _init(comm, name, transport):
    with ringreduce.init(comm.rank, comm.size, name, transport=transport, timeout=20) as made:
        _use(made)
    return comm


def _split(comm, name, transport):
    with comm.split(0) as made:
        _use(made)
    return comm


def _split_and_forget(comm, name, transport):
    _use(comm.split(0))
    comm.barrier()  # nobody forgets it while another uses it
    return comm


def _meet(comm):
    with contextlib.suppress(
        ringreduce.PeerLost
    ):  # the other rank has met this one, and is in shrink() already
        comm.barrier()


def _shrink(comm, name, transport):
    _meet(comm)
    return comm.shrink()


def _local(comm, name, transport):
    for made in ringreduce.local_group(3):
        made.close()
    return comm


def _repeat(comm, board, cycle, transport):
    group = ringreduce.init(comm.rank, comm.size, f"leaks/{os.getppid()}", transport=transport, timeout=20)
    seen = []
    for number in range(2 * CYCLES + 1):
        group = cycle(group, f"leaks/{os.getppid()}/{number}", transport)
        if number % CYCLES == 0:
            _meet(group)
            seen.append(held())
            _meet(group)
    return ringreduce.world().size, seen


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("cycle", [_init, *slowly(_split), _split_and_forget, _shrink, *slowly(_local)])
def test_groups_leave_nothing(cycle, transport):
    for world, (_, before, after) in run(_repeat, 2, cycle, transport):
        assert world == 2
        threads, mapped, files, which = [
            now - then for then, now in zip(before[:3], after[:3], strict=True)
        ] + [after[3] - before[3]]
        assert (threads, mapped) == (0, 0)
        assert files <= 1, which  # a connection that is just being replaced


def _keep_what_is_closed(comm, board, transport):
    group = ringreduce.init(comm.rank, 2, f"leaks/{os.getppid()}", transport=transport, timeout=20)
    for _ in range(3):
        _use(group)  # its arrays move to shared memory, which stays with the process
    kept, before = [], held()
    for _ in range(5):
        with group.split(0) as made:
            _use(made)
        kept.append(made)
    return before, held()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_closed_groups_that_the_program_keeps(transport):
    for before, after in run(_keep_what_is_closed, 2, transport):
        assert after[0] == before[0]
        assert after[2] <= before[2] + 1, after[3] - before[3]  # a connection that is just being replaced


def _shrink_the_world(comm, board):
    """The group that it is made from is no longer held by anyone."""
    ringreduce.finalize()
    world = ringreduce.init(comm.rank, 2, f"leaks/{os.getppid()}", transport="tcp", timeout=20)
    _use(world)
    before = held()
    _meet(world)
    world = world.shrink()
    _use(world)
    ringreduce.barrier()
    assert ringreduce.world() is world
    return before, held()


def test_the_world_after_shrink():
    for before, after in run(_shrink_the_world, 2):
        assert after[0] <= before[0]
        assert after[2] <= before[2] + 1, after[3] - before[3]
