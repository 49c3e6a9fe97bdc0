"""Peers read shared memory in place, which keeps its owner waiting, only where that is faster than a copy."""

from __future__ import annotations

import time

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


@pytest.mark.parametrize("count", [8193, 25_000, 375_002])
def test_a_call_lasts_until_its_slices_have_been_read(count):
    """A slice does not wait for the reader of the one before it, but the call does.

    Of the shortest arrays, the last slice is too short to be lent.
    """

    def rank_main(comm):
        block = ringreduce.empty(count, "float32")
        wrong = 0
        for call in range(8):
            block[:] = np.arange(count) + call + comm.rank
            if comm.rank == 0:
                time.sleep(0.01)  # the other has lent what it can
            found = comm.gather(block)
            block[:] = -1
            if comm.rank == 0:
                expected = [np.arange(count) + call + rank for rank in range(2)]
                wrong += np.count_nonzero(found != np.concatenate(expected))
        return int(wrong)

    assert on_processes(2, rank_main) == [0, 0]


def test_staged_messages_keep_their_place_until_they_are_answered():
    """Two shots fill the lane so that results would lie over messages whose answers have not been read.

    A rank that lends its input and grants nothing makes the others send their results in messages of their own.
    """

    def rank_main(comm):
        wrong = []
        for lender in range(comm.size):
            with comm.split(0) as group:  # whose lanes are empty
                for call in range(16):
                    count = [16_384, 125_000][call % 2]
                    x = (ringreduce.empty if comm.rank == lender else np.empty)(count, "float32")
                    x[:] = np.arange(count) % 1021 + comm.rank * call
                    out = group.all_reduce(x, out=np.empty_like(x), algorithm="two_shot")
                    total = np.arange(count) % 1021 * comm.size + sum(range(comm.size)) * call
                    wrong.append(int(np.count_nonzero(out != total)))
        return wrong

    assert on_processes(4, rank_main) == [[0] * 64] * 4


@pytest.mark.parametrize("readable", ["both", "input", "output", "neither"])
def test_what_a_rank_keeps_is_copied_before_it_is_sent(readable):
    """Peers of 2 MiB and more read the copy in the output, or the input if they can read only that."""
    count = 300_000  # of each of two ranks

    def rank_main(comm):
        def made(count, which):
            if readable in ("both", which):
                return ringreduce.empty(count, "float32")
            return np.frombuffer(bytearray(4 * count), "float32")

        x, wide, out = made(count, "input"), made(2 * count, "input"), made(2 * count, "output")
        wrong = 0
        algorithms = [a.name for a in ringreduce.algorithms("all_gather") if a.name != "synthesised"]
        for call, algorithm in enumerate(["auto", *algorithms] * 2):
            x[:] = np.arange(count) + 10 * call + comm.rank
            comm.all_gather(x, out=out, algorithm=algorithm)
            x[:] = -1  # the peer has read it by now
            for rank in range(2):
                found = out[rank * count : (rank + 1) * count]
                wrong += np.count_nonzero(found != np.arange(count) + 10 * call + rank)
        for call in range(4):
            wide[:] = np.arange(2 * count) % 1000 + call
            comm.scan(wide, out=out, factor=0.5)
            wrong += np.count_nonzero(out != (comm.rank + 1) * (np.arange(2 * count) % 1000 + call) / 2)
        return int(wrong)

    assert on_processes(2, rank_main) == [0, 0]
