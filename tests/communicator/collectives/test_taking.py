"""Readers take over lines that are slow to rewrite. Everything here counts as slow, wherever the cores are."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import ringreduce
from ringreduce import _engine
from tests.conftest import on_processes, on_threads

USUAL = 7.0  # as in the engine
TAKES = platform.machine() == "x86_64"


@pytest.fixture(autouse=True)
def all_slow():
    _engine.take_lines_from(0)
    yield
    _engine.take_lines_from(USUAL)


def calls(comm, count):
    """Yields the calls on memory that peers read: what each leaves in its output, and what it should be."""
    size, rank = comm.size, comm.rank
    x, out = ringreduce.empty(size * count, "float32"), ringreduce.empty(size * count, "float32")
    block, own = ringreduce.empty(count, "float32"), slice(rank * count, (rank + 1) * count)
    values = np.arange(size * count, dtype="float32") % 1000
    for turn in range(80):
        x[:] = values + turn + rank
        yield comm.reduce_scatter(x, out=block), size * (values[own] + turn) + sum(range(size))
        out[own] = values[own] + turn
        yield comm.all_gather(out[own], out=out), values + turn
        block[:] = values[own] - turn
        yield comm.all_gather(block, out=out), values - turn
        x[:] = values + turn if rank == turn % size else -1
        yield comm.broadcast(x, turn % size), values + turn
        x[:] = values + turn + rank
        yield comm.all_reduce(x, out=out), size * (values + turn) + sum(range(size))
        x[:] = values + turn + rank
        mine = values.reshape(size, count)[rank]
        yield comm.all_to_all(x, out=out), np.concatenate([mine + turn + peer for peer in range(size)])


@pytest.mark.parametrize("count", [10_001, 150_000])
@pytest.mark.parametrize("world", [2, 3])
def test_taken_lines_keep_their_values(world, count):
    def rank_main(comm):
        before = _engine.take_lines_from(0)  # by the process that this one was forked from
        wrong = sum(int(np.count_nonzero(found != wanted)) for found, wanted in calls(comm, count))
        return wrong, _engine.take_lines_from(0) > before

    assert on_processes(world, rank_main) == [(0, TAKES)] * world


def test_lines_that_are_fast_are_left_to_their_owner():
    def rank_main(comm):
        before = _engine.take_lines_from(1e9)
        wrong = sum(int(np.count_nonzero(found != wanted)) for found, wanted in calls(comm, 10_000))
        return wrong, _engine.take_lines_from(1e9) - before

    assert on_processes(2, rank_main) == [(0, 0)] * 2


def lines_taken(comm, call):
    """Of the peers, in calls enough for two samples."""
    before = _engine.take_lines_from(0)
    for _ in range(60):
        call()
    return _engine.take_lines_from(0) - before


@pytest.mark.skipif(not TAKES, reason="lines are taken on x86-64 only")
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_an_all_to_all_is_read_in_place_unless_it_writes_there(algorithm):
    """The chunk that it sends to a peer is the one that the peer's goes to."""

    def rank_main(comm):
        x, out = ringreduce.empty(100_000, "float32"), ringreduce.empty(100_000, "float32")
        x[:] = out[:] = 0
        kept = lines_taken(comm, lambda: comm.all_to_all(x, out=out, algorithm=algorithm))
        return kept > 0, lines_taken(comm, lambda: comm.all_to_all(x, out=x, algorithm=algorithm))

    assert on_processes(2, rank_main) == [(True, 0)] * 2


@pytest.mark.skipif(not TAKES, reason="lines are taken on x86-64 only")
def test_broadcasts_are_copied_unless_they_leave_the_caches():
    def rank_main(comm):
        short, long = ringreduce.empty(1 << 20, "float32"), ringreduce.empty((1 << 20) + 1, "float32")
        short[:] = long[:] = 0
        return [lines_taken(comm, lambda x=x: comm.broadcast(x, 0)) > 0 for x in (short, long)]

    assert on_processes(2, rank_main) == [[False, False], [False, True]]


def test_read_only_memory_of_threads(tmp_path):
    """Ranks that are threads lend whatever their caller has."""
    count = 50_000
    np.arange(2 * count, dtype="float32").tofile(tmp_path / "x")

    def rank_main(comm):
        x = np.memmap(tmp_path / "x", "float32", "r")
        for _ in range(100):
            out = comm.reduce_scatter(x)
        return int(np.count_nonzero(out != 2 * x[comm.rank * count : (comm.rank + 1) * count]))

    assert on_threads(2, rank_main) == [0, 0]
