"""Which arrays move to shared memory when they are communicated, when they do, and that nothing else differs."""

from __future__ import annotations

import gc
import os
import random
import resource
import time

import numpy as np
import pytest

import ringreduce
from tests.conftest import slowly

from ...conftest import on_processes
from .blocks import K, M, is_shared, moved, use


@pytest.mark.parametrize("size", [256 * K, M + 12, 5 * M + 4, *slowly(300 * K, 2 * M, 33 * M)])
def test_an_array_moves_with_its_second_use(size):
    def rank_main(comm):
        array = np.arange(size // 4, dtype=np.int32)
        address, found = array.ctypes.data, []
        for _ in range(4):
            found.append(is_shared(array))
            use(comm, array)
            assert (array == np.arange(size // 4)).all()
        assert array.ctypes.data == address
        total = np.empty_like(array)
        for use_of_total in range(3):
            comm.all_reduce(array, out=total)
            assert (total == np.arange(size // 4, dtype=np.int32) * comm.size).all(), use_of_total
        return found, is_shared(total)

    assert on_processes(2, rank_main) == [([False, False, True, True], True)] * 2


def test_it_stays_if_it_is_small_or_used_in_part():
    def rank_main(comm):
        small, large = np.zeros(255 * K, np.uint8), np.zeros(M, np.uint8)
        for _ in range(5):
            use(comm, small)
            for part in (large[:-1], large[1:], large[: M // 2]):
                use(comm, part)
        return is_shared(small), is_shared(large)

    assert on_processes(2, rank_main) == [(False, False)] * 2


def test_it_stays_where_no_peer_could_reach_it():
    def rank_main(comm):
        array = np.zeros(M, np.uint8)
        for _ in range(5):
            use(comm, array)
        return is_shared(array)

    assert ringreduce.run(rank_main, 2, transport="tcp") == [False] * 2
    assert on_processes(1, rank_main) == [False]


def test_it_stays_if_the_environment_says_so(monkeypatch):
    def rank_main(comm):
        array = np.zeros(M, np.uint8)
        for _ in range(5):
            use(comm, array)
        return is_shared(array), ringreduce.empty(M).nbytes

    monkeypatch.setenv("RINGREDUCE_NUMPY_MEMORY", "ordinary")
    assert on_processes(2, rank_main) == [(False, 4 * M)] * 2


def test_messages_are_uses():
    def rank_main(comm):
        array = np.full(M, comm.rank, np.uint8)
        for _ in range(3):
            if comm.rank == 0:
                comm.send(array, 1)
            else:
                assert (comm.recv(np.empty(M, np.uint8), 0) == 0).all()
        return is_shared(array)

    assert on_processes(2, rank_main) == [True, False]


def test_in_place_parts_of_a_shared_array_are_reached():
    """An all_gather whose input lies in its output, as FSDP's."""

    def rank_main(comm):
        whole = np.zeros(2 * M, np.uint8)
        part = np.split(whole, comm.size)[comm.rank]
        for turn in range(1, 4):
            part[:] = 10 * comm.rank + turn
            comm.all_gather(part, out=whole)
            assert (whole == np.repeat([turn, 10 + turn], M)).all()
        return is_shared(whole), is_shared(part)

    assert on_processes(2, rank_main) == [(True, True)] * 2


def test_what_was_shared_is_used_again():
    def rank_main(comm):
        array = moved(comm, 4 * M)
        address = array.ctypes.data
        del array
        again = np.zeros(M, np.int32)  # zeroed memory comes from where nothing has been written
        assert not is_shared(again) and not again.any()
        again = np.empty(M, np.int32)
        return again.ctypes.data == address, is_shared(again)

    assert on_processes(2, rank_main) == [(True, True)] * 2


def test_zeroed_arrays_are_zero_whatever_was_there():
    def rank_main(comm):
        for turn in range(30):
            arrays = [moved(comm, 3 * M), np.full(2 * M, 7, np.uint8)]
            del arrays
            zeros = [np.zeros(size, np.uint8) for size in (300 * K, M, 2 * M, 5 * M)]
            assert not any(array.any() for array in zeros), turn
            zeros[turn % 4].fill(1)

    on_processes(2, rank_main)


def test_an_array_keeps_its_values_when_it_is_resized():
    def rank_main(comm):
        array = moved(comm, M)
        for size in (M, 100, 10, 2 * M):
            before = min(size, len(array))
            array.resize(size, refcheck=False)
            assert (array[:before] == np.arange(before)).all() or before > 10
        return len(array)

    assert on_processes(2, rank_main) == [2 * M] * 2


def test_no_two_arrays_overlap_and_memory_and_descriptors_are_given_back():
    def rank_main(comm):
        chance, live, most = random.Random(1), {}, 0
        before = len(os.listdir("/proc/self/fd"))  # of tests before this one, which a fork has copied
        for step in range(2000):
            if live and (len(live) > 60 or chance.random() < 0.45):
                number = chance.choice(list(live))
                assert (live.pop(number) == number).all(), number
            else:
                size = chance.choice([64 * K, 70_000, 200 * K, 600 * K])
                live[step] = np.full(size, step, np.int32)
            if live and chance.random() < 0.3:
                use(comm, live[chance.choice(list(live))])
            most = max(most, len(os.listdir("/proc/self/fd")))
        assert all((array == number).all() for number, array in live.items())
        shared = sum(map(is_shared, live.values()))
        live.clear()
        gc.collect()
        return shared, most - before

    for shared, most in on_processes(2, rank_main):
        assert shared > 5 and most < 100


def test_what_goes_back_was_not_used_for_longest():
    """An array that each step makes and reduces stays shared, whatever else the steps leave behind."""

    def rank_main(comm):
        moved(comm, 8 * M)
        shared, between = [], []
        for _ in range(30):
            array = np.empty(8 * M, np.uint8)
            shared.append(is_shared(array))
            left = np.zeros(4 * M, np.uint8)  # in new pages each time
            between.append(np.zeros(2 * M, np.uint8))  # so that none of it joins what was left before
            del array, left
        return shared

    assert on_processes(2, rank_main) == [[True] * 30] * 2


def test_gaps_between_arrays_take_no_memory_from_steps():
    """Free memory that no request fits into does not count as a part of what the steps need."""

    def rank_main(comm):
        parts = [np.ones(M, np.uint8) for _ in range(32)]
        del parts[::2]

        def step():
            _one, _other = np.ones(100 * M, np.uint8), np.ones(60 * M, np.uint8)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        before, *_, after = [step() for _ in range(10)]
        return after - before

    assert max(on_processes(2, rank_main)) < 150  # the larger array alone has 50 pages or more, in each step


@pytest.mark.slow
def test_memory_goes_back_that_was_not_needed_for_some_time():
    def resident():
        with open("/proc/self/statm") as text:
            return int(text.read().split()[1]) * 4 * K

    def rank_main(comm):
        before = resident()
        arrays = [moved(comm, 100 * M) if turn % 2 else np.ones(100 * M, np.uint8) for turn in range(4)]
        during = resident()
        del arrays
        after = resident()
        for _ in range(2):  # the most of ten seconds, and then of ten others
            time.sleep(10.5)
            np.ones(M, np.uint8)
        comm.barrier()  # what a peer has shared counts as long as it keeps it
        return [round((found - before) / (100 * M)) for found in (during, after, resident())]

    for during, after, later in on_processes(2, rank_main):
        assert during == after >= 4 and later <= 1  # the peer's are counted where they are mapped


def test_arrays_of_other_threads_stay_ordinary():
    """NumPy keeps its allocator in a context variable. docs/api.md says so."""
    import threading

    def rank_main(comm):
        made = []
        thread = threading.Thread(target=lambda: made.append(np.zeros(M, np.uint8)))
        thread.start()
        thread.join()
        for _ in range(3):
            use(comm, made[0])
        return is_shared(made[0])

    assert on_processes(2, rank_main) == [False] * 2


def test_tracemalloc_sees_them():
    import tracemalloc

    def rank_main(comm):
        tracemalloc.start()
        array = np.empty(8 * M, np.uint8)
        during = tracemalloc.get_traced_memory()[0]
        del array
        return during - tracemalloc.get_traced_memory()[0]

    assert all(abs(bytes - 8 * M) < 100 * K for bytes in on_processes(2, rank_main))
