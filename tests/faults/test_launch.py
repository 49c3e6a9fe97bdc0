"""ringreduce.run() ends when its ranks do, however they end."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from ranks import Boom

import ringreduce

pytestmark = pytest.mark.timeout(30)


def _one_ends(comm, how):
    comm.barrier()
    if comm.rank == 1:
        if how == "raise":
            raise Boom("here")
        if how == "exit":
            os._exit(4)
        if how == "kill, with a child" and os.fork() == 0:
            time.sleep(4)
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
    began = time.monotonic()
    with pytest.raises(ringreduce.RankFailed, match=text) as caught:
        ringreduce.run(_one_ends, 3, how)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, Boom) == (how == "raise")
    assert time.monotonic() - began < 3


def _one_hangs(comm):
    if comm.rank == 0:
        raise Boom
    while True:
        time.sleep(1)


def test_ranks_that_go_on_are_ended():
    began = time.monotonic()
    with pytest.raises(ringreduce.RankFailed, match="rank 0"):
        ringreduce.run(_one_hangs, 2, grace=0.5)
    assert time.monotonic() - began < 3
