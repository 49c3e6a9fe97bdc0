"""Every collective by every algorithm, against NumPy, with inputs whose results are exact."""

from __future__ import annotations

import numpy as np
import pytest

import ringreduce
from ringreduce._engine import usable_cores
from tests.communicator.collectives.calls import COLLECTIVES, ROOTED, WHOLE, Call, algorithms, check, variants
from tests.conftest import on_processes, on_threads, slowly

SMALL = [0, 1, 2, 17, 1000, 10_007]
SEVERAL_SLICES = 270_007  # of 4 bytes: more than 1 MiB


def calls(collective, world, counts):
    for algorithm in algorithms(collective):
        for count in counts:
            for root in (
                sorted({0, world - 1, world // 2}) if collective in ROOTED and count < 1000 else [world - 1]
            ):
                yield from variants(Call(collective, count, algorithm, root if collective in ROOTED else 0))


def check_all(comm, collectives, counts):
    for collective in collectives:
        for call in calls(collective, comm.size, counts):
            check(comm, call)


@pytest.mark.parametrize("world", [1, 2, 3, 4, *slowly(5, 6, 7), 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_algorithm(collective, world):
    on_threads(world, check_all, [collective], SMALL)


@pytest.mark.parametrize("world", [1, 2, 3, *slowly(5)])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_several_slices(collective, world):
    on_threads(
        world, check_all, [collective], [SEVERAL_SLICES if collective in WHOLE else SEVERAL_SLICES // world]
    )


@pytest.mark.parametrize("collective", ["broadcast", "gather", "scatter", "all_gather", "all_to_all"])
def test_results_that_overflow_the_caches_of_ranks_on_shared_cores(collective):
    """They are written past the caches where cores fetch what they overwrite."""
    world = 2 * usable_cores() if usable_cores() <= 4 else 2
    whole = (16 << 20) // 4 // world + 5
    on_processes(world, check_all, [collective], [whole if collective in WHOLE else whole // world])


@pytest.mark.parametrize("world", slowly(13, 16))
def test_larger_worlds(world):
    on_threads(world, check_all, COLLECTIVES, [1, 50])


@pytest.mark.parametrize("world", [2, *slowly(3, 8), *slowly(5)])
def test_processes_with_ordinary_arrays(world):
    on_processes(world, check_all, COLLECTIVES, [0, 3, 10_007, *([SEVERAL_SLICES] if world <= 3 else [])])


@pytest.mark.skipif(usable_cores() < 2, reason="all ranks share the only core")
def test_leaders_follow_the_cores():
    """Only with ranks `cores` apart in one group do the two large values vanish before a 1 is added to them."""
    cores = usable_cores()

    def total(comm):
        own = {0: 2.0**30, cores: -(2.0**30)}.get(comm.rank, 1.0)
        return comm.all_reduce(np.full(8 * cores, own, np.float32), algorithm="leaders").tolist()

    assert on_threads(2 * cores, total) == [[2.0 * cores - 2] * 8 * cores] * 2 * cores


def check_shared(comm, counts):
    for collective in COLLECTIVES:
        for call in calls(collective, comm.size, counts):
            for shared_in, shared_out in [(True, True), (False, True), (True, False)]:
                check(
                    comm,
                    Call(**{**vars(call), "shared_in": shared_in, "shared_out": shared_out, "offset": 3}),
                )


@pytest.mark.parametrize("world", [3, *slowly(2, 4, 6)])
def test_processes_with_shared_arrays(world):
    on_processes(world, check_shared, [10_007, *([SEVERAL_SLICES] if world == 2 else [])])


def check_mixed(comm, counts):
    """Some ranks' arrays can be read by their peers, and some cannot."""
    for pattern in ([True, False], [False, True], [False, True, True]):
        shared = pattern[comm.rank % len(pattern)]
        for collective in COLLECTIVES:
            for call in calls(collective, comm.size, counts):
                check(comm, Call(**{**vars(call), "shared_in": shared, "shared_out": shared}))


@pytest.mark.parametrize("world", [3, *slowly(2, 4)])
def test_processes_with_mixed_arrays(world):
    on_processes(world, check_mixed, [20_011])


def check_bits(comm, count):
    """Sums that are not exact: whatever the order, it must be the same one everywhere."""
    for entry in ringreduce.algorithms("all_reduce"):
        random = np.random.default_rng(comm.rank)
        x = (random.standard_normal(count) * 10.0 ** random.integers(-6, 6, count)).astype("float32")
        comm.all_reduce(x, algorithm=entry.name)
        everybodys = comm.all_gather(x.view("int32")).reshape(comm.size, -1)
        assert (everybodys == everybodys[0]).all(), f"{entry.name} gives ranks different bits"


@pytest.mark.parametrize("world", [2, 3, 4, 5, *slowly(6, 7), 8, *slowly(11)])
def test_all_ranks_get_the_same_bits(world):
    on_threads(world, check_bits, 5001)


@pytest.mark.parametrize("world", [3, *slowly(4)])
def test_all_ranks_get_the_same_bits_of_several_slices(world):
    on_threads(world, check_bits, SEVERAL_SLICES)
    on_processes(world, check_bits, SEVERAL_SLICES)


def test_barrier(on_ranks):
    def rank_main(comm):
        return comm.barrier() is None

    for world in (1, 2, 5, 8):
        assert all(on_ranks(world, rank_main))


@pytest.mark.parametrize("world", [2, 5, 9, 16])
def test_nobody_passes_a_barrier_before_all_have_come(world):
    come = [0] * world

    def rank_main(comm):
        for n in range(1, 40):
            come[comm.rank] = n
            comm.barrier()
            assert min(come) >= n
            if n % 3 == 0:  # what everyone tells everyone lies where the next barriers do
                assert comm.all_reduce(np.array([n + comm.rank])) == world * n + sum(range(world))

    on_threads(world, rank_main)


def test_results_are_new_arrays_unless_told_otherwise():
    def rank_main(comm):
        x = np.full(comm.size * 3, comm.rank + 1, "float32")
        assert comm.all_gather(x).shape == (9 * 3,)
        assert comm.reduce_scatter(x).tolist() == [6.0] * 3
        assert comm.all_to_all(x).shape == x.shape
        assert (x == comm.rank + 1).all()
        assert comm.all_reduce(x) is x
        assert comm.reduce(x, 0) is (x if comm.rank == 0 else None)

    on_threads(3, rank_main)


def test_rows_keep_their_shape():
    def rank_main(comm):
        x = np.arange(24, dtype="int32").reshape(4, 3, 2)
        assert comm.all_gather(x).shape == (8, 3, 2)
        assert comm.reduce_scatter(x).shape == (2, 3, 2)
        counts = [1, 3] if comm.rank == 0 else [3, 1]
        assert comm.all_to_all(x, send_counts=counts, recv_counts=counts).shape == (4, 3, 2)

    on_threads(2, rank_main)
