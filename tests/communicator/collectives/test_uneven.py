"""Blocks of different lengths, none too."""

from __future__ import annotations

import numpy as np
import pytest

from tests.communicator.collectives.calls import Call, algorithms, check, variants
from tests.conftest import on_processes, on_threads, slowly


def patterns(world):
    yield [r for r in range(world)]
    yield [0] * world
    yield [0] * (world - 1) + [100]
    yield [70_001 if r == world // 2 else 3 * r for r in range(world)]
    yield [150_000 // (r + 1) for r in range(world)]


def check_blocks(comm, shared):
    for collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
        for algorithm in algorithms(collective):
            for counts in patterns(comm.size):
                call = Call(collective, algorithm=algorithm, root=comm.size - 1, counts=tuple(counts),
                            shared_in=shared, shared_out=shared)  # fmt: skip
                for variant in variants(call):
                    check(comm, variant)


def matrices(world):
    yield [[(3 * r + s) % 4 for s in range(world)] for r in range(world)]
    yield [[0] * world] * world
    yield [[90_000 if r == s else 0 for s in range(world)] for r in range(world)]
    yield [[0 if r == s else 100_000 // (1 + r + 2 * s) for s in range(world)] for r in range(world)]
    yield [[300_000 if (r, s) == (0, world - 1) else s for s in range(world)] for r in range(world)]


def check_exchange(comm, shared):
    for matrix in matrices(comm.size):
        call = Call("all_to_all", counts=tuple(map(tuple, matrix)), shared_in=shared, shared_out=shared)
        for variant in variants(call):
            check(comm, variant)


@pytest.mark.parametrize("world", [1, 2, 3, *slowly(5, 8)])
def test_threads(world):
    on_threads(world, check_blocks, False)
    on_threads(world, check_exchange, False)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("world", [2, *slowly(4)])
def test_processes(world, shared):
    on_processes(world, check_blocks, shared)
    on_processes(world, check_exchange, shared)


def test_all_to_all_in_place_with_counts_that_are_the_same_both_ways():
    def rank_main(comm):
        counts = [2, 5] if comm.rank == 0 else [5, 3]
        x = np.full(sum(counts), comm.rank, "float32")
        comm.all_to_all(x, out=x, send_counts=counts, recv_counts=counts)
        want = [0] * 2 + [1] * 5 if comm.rank == 0 else [0] * 5 + [1] * 3
        assert x.tolist() == want

    on_threads(2, rank_main)


def test_counts_that_do_not_fit_are_refused():
    def rank_main(comm):
        x = np.zeros(7, "float32")
        for call in (
            lambda: comm.all_gather(x, counts=[7]),
            lambda: comm.all_gather(x, counts=[6, 6]),
            lambda: comm.all_gather(x, counts=[7, -1]),
            lambda: comm.reduce_scatter(x, counts=[3, 3]),
            lambda: comm.reduce_scatter(x, counts=[3, 3, 1]),
            lambda: comm.gather(x, counts=[7, 7, 7]),
            lambda: comm.scatter(x, out=np.zeros(3, "float32"), counts=[3]),
            lambda: comm.scatter(x, comm.rank, counts=[]),
            lambda: comm.all_to_all(x, send_counts=[3, 4]),
            lambda: comm.all_to_all(x, send_counts=[3, 3], recv_counts=[3, 3]),
            # Its own block has two lengths.
            lambda: comm.all_to_all(x, send_counts=[3, 4], recv_counts=[4, 3]),
        ):
            with pytest.raises(ValueError, match=r"counts|but must have"):
                call()
        assert (comm.all_reduce(np.ones(3, "float32")) == 2).all()

    on_threads(2, rank_main)


def test_all_to_all_in_place_with_different_counts_is_refused():
    def rank_main(comm):
        x = np.zeros(9, "float32")
        sent, received = [[3, 4, 2], [2, 3, 4], [4, 2, 3]], [[3, 2, 4], [4, 3, 2], [2, 4, 3]]
        with pytest.raises(ValueError, match="out may be x"):
            comm.all_to_all(x, out=x, send_counts=sent[comm.rank], recv_counts=received[comm.rank])
        comm.barrier()

    on_threads(3, rank_main)


@pytest.mark.parametrize("rows", [1, 40_000])
def test_blocks_that_change_and_return(rows):
    """A call is planned from the blocks of the one before it only if they are the same."""

    def rank_main(comm):
        found = []
        for small, large in [(1, 3), (1, 3), (3, 1), (2, 2), (1, 3)]:
            counts = [small * rows, large * rows]
            x = np.full(counts[comm.rank], comm.rank + 1.0)
            whole = comm.all_gather(x, counts=counts)
            block = comm.reduce_scatter(whole, counts=counts)
            found.append(
                np.array_equal(whole, np.repeat([1.0, 2.0], counts)) and np.array_equal(block, 2 * x)
            )
        return found

    assert on_processes(2, rank_main) == [[True] * 5] * 2


def test_exchanges_that_change_and_return():
    """Blocks of one slice and of several, of which a rank knows its own only. The calls are under way together."""

    def rank_main(comm):
        calls = []
        for number, counts in enumerate([(1, 3), (1, 3), (200_000, 3), (3, 1), (200_000, 3), (0, 5), (1, 3)]):
            own = [counts[(comm.rank + peer) % 2] for peer in range(2)]
            x = np.repeat([10.0 * comm.rank + number, 10.0 * comm.rank + number + 1], own)
            want = np.repeat([number + comm.rank, 10.0 + number + comm.rank], own)
            calls.append((comm.all_to_all(x, send_counts=own, recv_counts=own, async_op=True), want))
        return [np.array_equal(call.wait(), want) for call, want in calls]

    assert on_processes(2, rank_main) == [[True] * 7] * 2
