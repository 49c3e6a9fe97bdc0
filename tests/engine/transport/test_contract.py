"""What every transport promises, as far as one can see it from above: one suite, run on each of them."""

from __future__ import annotations

import os
import resource
import threading
import time

import numpy as np
import pytest

import ringreduce
from tests.conftest import on_processes

BIG = 2_000_003  # bytes: more than a lane holds


def others(comm):
    return [peer for peer in range(comm.size) if peer != comm.rank]


def test_small_messages_to_everyone_follow_each_other_and_others(on_ranks):
    def rank_main(comm):
        random = np.random.default_rng(comm.rank)
        for i in range(300):
            count = [1, 10, 11, 3, 500][i % 5]  # up to 40 bytes are told to all at once
            x = np.full(count, i + comm.rank, "float32")
            want = comm.size * i + sum(range(comm.size))
            algorithm = ["one_shot", "ring"][i % 7 == 3]
            assert (comm.all_reduce(x, algorithm=algorithm) == want).all()
            if i % 3 == 0:
                parts = comm.all_gather(np.full(count % 7, i + comm.rank, "int32"), algorithm="direct")
                assert np.array_equal(parts.reshape(comm.size, -1)[:, :1].ravel(), i + np.arange(comm.size))
            if random.integers(50) == 0:
                time.sleep(0.002)  # others are ahead by as much as they can be

    on_ranks(4, rank_main)


def test_messages_of_a_round_find_space_behind_those_of_earlier_calls(on_ranks):
    """In shared memory, no message may wait for space that another one of its round takes: nobody reads that yet."""

    def rank_main(comm):
        for i in range(20):
            for length in (2000, 4000, 12_000):  # bytes, of which many stay at the front of a lane
                before = np.full(length // 4, comm.rank + i, "float32")
                assert (
                    comm.all_reduce(before, algorithm="one_shot")
                    == sum(others(comm), comm.rank + i * comm.size)
                ).all()
                x = np.full((comm.size, length), comm.rank, "uint8")
                assert (np.arange(comm.size) == comm.all_to_all(x, algorithm="direct").T).all()

    on_ranks(12, rank_main)


def test_messages_keep_their_order(on_ranks):
    def rank_main(comm):
        lengths = [1, 5000, 0, 3, 200_000, 10, 70_000]
        for i, length in enumerate(lengths * 3):
            x = np.full(length, i + 1, "float32")
            if comm.rank == 0:
                comm.send(x, 1, tag=i)
            elif comm.rank == 1:
                got = np.zeros(length, "float32")
                assert comm.recv(got, 0, tag=i) is got and (got == x).all()

    on_ranks(3, rank_main)


def test_many_messages_under_way_between_all_pairs(on_ranks):
    def rank_main(comm):
        works, received = [], []
        for i in range(20):
            length = [10, 3000, 60_000, BIG // 10][i % 4]
            for peer in others(comm):
                works.append(comm.send(np.full(length, 100 * comm.rank + i, "int32"), peer, async_op=True))
                received.append((np.zeros(length, "int32"), 100 * peer + i))
                works.append(comm.recv(received[-1][0], peer, async_op=True))
        for work in reversed(works):
            work.wait(30)
        assert all((got == want).all() for got, want in received)

    on_ranks(4, rank_main)


def test_big_messages(on_ranks):
    def rank_main(comm):
        for new in (np.zeros, ringreduce.zeros):
            x, got = new(BIG, "uint8"), new(BIG, "uint8")
            x[:] = np.arange(BIG) % 251 + comm.rank
            work = comm.recv(got, 1 - comm.rank, async_op=True)
            comm.send(x, 1 - comm.rank)
            assert work.wait(30) is got
            assert np.array_equal(got - (1 - comm.rank), x - comm.rank)

    on_ranks(2, rank_main)


def test_a_sent_buffer_may_be_changed_at_once(on_ranks):
    def rank_main(comm):
        for new in (np.zeros, ringreduce.zeros):
            x = new(300_000, "float32")
            for value in range(5):
                if comm.rank == 0:
                    x[:] = value
                    comm.send(x, 1)
                    x[:] = -1
                else:
                    assert (comm.recv(x, 0) == value).all()

    on_ranks(2, rank_main)


def test_bad_peers_are_refused(on_ranks):
    def rank_main(comm):
        x = np.zeros(3)
        for peer in (-1, comm.size):
            with pytest.raises(ValueError, match=f"dest must be a rank from 0 to 1, not {peer}"):
                comm.send(x, peer)
            with pytest.raises(ValueError, match=f"source must be None or a rank from 0 to 1, not {peer}"):
                comm.recv(x, peer, async_op=True)
        with pytest.raises(ValueError, match="dest must be a rank from 0 to 1, not None"):
            comm.send(x, None)
        comm.barrier()

    on_ranks(2, rank_main)


@pytest.mark.parametrize("wrong", [{"count": 5}, {"dtype": "int32"}])
def test_messages_that_do_not_match(wrong, on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            with pytest.raises(ringreduce.MismatchError):
                comm.send(np.zeros(4, "float32"), 1)
                comm.barrier()
        else:
            x = np.zeros(wrong.get("count", 4), wrong.get("dtype", "float32"))
            with pytest.raises(ringreduce.MismatchError, match="from rank 0"):
                comm.recv(x, 0)

    on_ranks(2, rank_main)


def test_many_communicators_at_once(on_ranks):
    def rank_main(comm):
        groups = [comm.split(0, comm.rank if i % 2 else -comm.rank) for i in range(32)]
        arrays = [np.full(1000, i + comm.rank, "float32") for i in range(32)]
        works = [group.all_reduce(x, async_op=True) for group, x in zip(groups, arrays, strict=True)]
        order = list(enumerate(works))
        for i, work in order[:: 1 if comm.rank else -1]:
            assert (work.wait(30) == 3 * i + 3).all()
        assert all(group.rank == (comm.rank if i % 2 else 2 - comm.rank) for i, group in enumerate(groups))
        for group in groups:
            group.close()

    on_ranks(3, rank_main)


def test_split(on_ranks):
    def rank_main(comm):
        half = comm.split(comm.rank % 2)
        assert (half.rank, half.size) == (comm.rank // 2, 3 - comm.rank % 2)
        assert half.all_gather(np.array([comm.rank])).tolist() == list(range(comm.rank % 2, 5, 2))
        nested = half.split(0 if half.rank < 2 else None, -half.rank)
        assert (nested is None) == (half.rank == 2)
        if nested:
            assert nested.rank == 1 - half.rank and nested.size == 2
            assert nested.all_gather(np.array([comm.rank])).tolist() == [comm.rank % 2 + 2, comm.rank % 2]
        assert comm.split(None) is None
        alone = comm.split(comm.rank)
        assert alone.size == 1 and alone.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="color"):
            comm.split(-1)
        assert (comm.all_reduce(np.ones(3)) == 5).all()

    on_ranks(5, rank_main)


def test_several_threads_at_once(on_ranks):
    def rank_main(comm):
        groups, failed = [comm.split(0) for _ in range(4)], []

        def body(group, seed):
            try:
                for i in range(30):
                    x = np.full([5, 3000, 50_000][i % 3], seed + i, "int64")
                    assert (group.all_reduce(x) == group.size * (seed + i)).all()
            except BaseException as error:
                failed.append(error)

        def talk():
            try:
                for i in range(30):
                    x = np.full(4000, i)
                    comm.send(x, 1) if comm.rank == 0 else comm.recv(np.zeros_like(x), 0)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=body, args=(group, 100 * i)) for i, group in enumerate(groups)]
        # All calls alike, so that it does not matter whose turn it is.
        threads += [threading.Thread(target=body, args=(comm, 7)) for _ in range(1)]
        threads += [threading.Thread(target=talk)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed

    on_ranks(2, rank_main)


def test_one_communicator_from_several_threads(on_ranks):
    def rank_main(comm):
        sums = []

        def body():
            for _ in range(50):
                sums.append(comm.all_reduce(np.ones(100, "int32"))[99])

        threads = [threading.Thread(target=body) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [3] * 150

    on_ranks(3, rank_main)


def test_asynchronous_calls_keep_their_order_among_blocking_ones(on_ranks):
    def rank_main(comm):
        x = np.ones(20_000, "int64")
        works = [comm.all_reduce(x, async_op=True) for _ in range(5)]
        comm.all_reduce(x)
        assert (x == 3**6).all() and all(work.done() for work in works)
        y = np.full(10, comm.rank)
        first = comm.broadcast(y, 2, async_op=True)
        second = comm.all_reduce(y, async_op=True)
        assert second.wait() is y and (y == 6).all() and first.done() and first.exception() is None
        assert comm.barrier(async_op=True).wait() is None

    on_ranks(3, rank_main)


def test_handles_may_be_dropped(on_ranks):
    def rank_main(comm):
        arrays = [np.full(30_000, i, "float32") for i in range(20)]
        for x in arrays:
            comm.all_reduce(x, async_op=True)
        for i in range(20):
            comm.all_reduce(np.full(30_000, i, "float32"), async_op=True)  # nobody holds the array either
        comm.barrier()
        assert all((x == 2 * i).all() for i, x in enumerate(arrays))

    on_ranks(2, rank_main)


def test_waiting_for_work(on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            work = comm.all_reduce(np.ones(5), async_op=True)
            assert not work.done() and work.exception() is None
            with pytest.raises(ringreduce.TimeoutError):
                work.wait(0.05)
            comm.send(np.zeros(1), 1)
            assert (work.wait(30) == 2).all() and (work.wait() == 2).all() and work.done()
        else:
            comm.recv(np.zeros(1), 0)
            comm.all_reduce(np.ones(5))
        bad = comm.all_reduce(np.ones(5), "band", async_op=True)
        with pytest.raises(ValueError, match="band"):
            bad.wait(30)
        assert bad.done() and isinstance(bad.exception(), ValueError)
        comm.barrier()

    on_ranks(2, rank_main)


@pytest.mark.parametrize("world", [3, 8])
def test_small_messages_stay_in_few_pages(world):
    def faults(comm):
        x = np.zeros(512, "float32")
        found = []
        for calls in (50, 500):
            for _ in range(calls):
                comm.all_reduce(x)
            found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return found[1] - found[0]

    a_lane = 1 << 20
    assert max(on_processes(world, faults)) < a_lane // resource.getpagesize() // 4


def test_memory_held():
    assert sum(on_processes(8, lambda comm: comm.memory_held)) <= 32 << 20

    def after_calls(comm):
        for entry in ringreduce.algorithms("all_reduce"):
            comm.all_reduce(np.ones(1 << 20, "float32"), algorithm=entry.name)
        return comm.memory_held

    assert sum(on_processes(8, after_calls)) <= 32 << 20


def test_nothing_is_left_behind():
    def rank_main(comm):
        x = ringreduce.empty(100_000)
        comm.all_reduce(x)
        return os.listdir("/dev/shm")

    before = set(os.listdir("/dev/shm"))
    for during in on_processes(2, rank_main):
        assert not [name for name in set(during) - before if "ringreduce" in name]
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "ringreduce" in name]
