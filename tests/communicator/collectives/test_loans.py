"""Peers read shared memory in place, which keeps its owner waiting, only where that is faster than a copy."""

from __future__ import annotations

import numpy as np
import pytest

import ringreduce
from ringreduce import _engine
from tests.conftest import on_processes


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_that_share_cores_do_not_wait_for_the_reader_of_a_short_block(shared):
    world = _engine.usable_cores() + 1
    if world > 8:
        pytest.skip("with so many ranks, the buffer is not short")

    def rank_main(comm):
        make = ringreduce.empty if shared else np.empty
        block, word = make(4096, "float32"), np.zeros(1)
        block[:] = comm.rank
        if comm.rank > 0:
            comm.gather(block)
            comm.send(word, 0, timeout=30)
            return []
        for peer in range(1, comm.size):
            comm.recv(word, peer, timeout=30)  # it has returned, although this rank has not read its block
        return comm.gather(block)[::4096].tolist()

    assert on_processes(world, rank_main)[0] == list(range(world))
