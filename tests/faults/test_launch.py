"""ringreduce.run() ends when its ranks do, however they end."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from ranks import Boom

import ringreduce
from tests.processes import gone


def _one_ends(comm, how, child):
    comm.barrier()
    if comm.rank == 1:
        if how == "raise":
            raise Boom("here")
        if how == "exit":
            os._exit(4)
        if how == "kill, with a child" and os.fork() == 0:
            os.write(child, b"%d" % os.getpid())
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return comm.all_reduce(np.ones(3, "float32"))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", "Boom: here"),
        ("exit", "exited with status 4"),
        ("kill", "killed by SIGKILL"),
        ("kill, with a child", "killed by SIGKILL"),
    ],
)
def test_the_rank_that_failed_first_is_named(how, text):
    reading, writing = os.pipe()
    began = time.monotonic()
    with pytest.raises(ringreduce.RankFailed, match=text) as caught:
        ringreduce.run(_one_ends, 3, how, writing, grace=25)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, Boom) == (how == "raise")
    assert time.monotonic() - began < 20  # it did not wait until the grace was over
    if how == "kill, with a child":
        child = int(os.read(reading, 20))
        assert not gone(child)  # nor for what the dead rank had started
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    os.close(writing)


def _one_hangs(comm):
    if comm.rank == 0:
        raise Boom
    while True:
        time.sleep(1)


def test_ranks_that_go_on_are_ended():
    began = time.monotonic()
    with pytest.raises(ringreduce.RankFailed, match="rank 0"):
        ringreduce.run(_one_hangs, 2, grace=0.5)
    assert time.monotonic() - began < 20


def _tells_its_number_and_hangs(comm, pipe):
    os.write(pipe, b"%d\n" % os.getpid())
    while True:
        time.sleep(1)


def test_ranks_do_not_outlive_a_killed_parent():
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        ringreduce.run(_tells_its_number_and_hangs, 2, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        ranks = [int(lines.readline()) for _ in range(2)]
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        until = time.monotonic() + 5
        while not all(gone(rank) for rank in ranks):
            assert time.monotonic() < until, "a rank lives on"
            time.sleep(0.01)
