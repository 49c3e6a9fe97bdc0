"""The engine keeps the plan of each call for the next call like it, and limits the memory that plans take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from tests.conftest import on_threads

MOST = 8 << 20


def growth(comm: Any, calls: Iterable[Callable[[], Any]]) -> int:
    """Returns the bytes of memory that the calls' plans take: the memory of everything else is there already."""
    before = comm.memory_held
    for call in calls:
        call()
    grown: int = comm.memory_held - before
    return grown


def many_sizes(comm: Any) -> tuple[int, int, int]:
    x = np.zeros(202 * 64, np.float32)
    size = lambda n: partial(comm.all_reduce, x[: 64 * n], algorithm="one_shot")  # noqa: E731
    sizes = [size(n) for n in range(1, 201)]
    size(202)()
    return growth(comm, [size(201)]), growth(comm, sizes), growth(comm, sizes * 3)


def test_each_of_200_multiples_of_64_has_a_plan_which_later_calls_find() -> None:
    for one, first, later in on_threads(2, many_sizes):
        assert one > 0
        assert first == 200 * one
        assert later == 0


def calls_that_differ(comm: Any, x: Any) -> list[Callable[[], Any]]:
    like = partial(comm._c.collective, "all_reduce", x, x, "sum", None, 0, -1, None, None, None, False)
    return [
        *(partial(comm.all_reduce, x, op) for op in ("sum", "min", "avg")),
        *(partial(comm.broadcast, x, root) for root in range(comm.size)),
        partial(comm.all_reduce, x.view(np.int32)),
        partial(comm.all_reduce, x, wire="bf16"),
        partial(comm.all_reduce, x, algorithm="two_shot"),
        partial(like, slice_bytes=64),
        partial(like, lanes=2),
        partial(like, lanes=3),
        partial(comm.all_gather, x),
    ]


def each_and_all_again(comm: Any) -> list[int]:
    for call in calls_that_differ(comm, np.zeros(1024, np.float32)):
        call()
    calls = calls_that_differ(comm, np.zeros(64, np.float32))
    return [*(growth(comm, [call]) for call in calls), growth(comm, calls * 2)]


def test_calls_that_differ_in_one_argument_have_a_plan_each() -> None:
    for *first, later in on_threads(3, each_and_all_again):
        assert min(first) > 0
        assert later == 0


def exchanges(comm: Any) -> tuple[int, int]:
    x = np.zeros(1 << 20, np.float32)

    def exchange(n: int) -> Callable[[], Any]:
        counts = [n] * comm.size
        part = x[: n * comm.size]
        return partial(comm.all_to_all, part, send_counts=counts, recv_counts=counts)

    return growth(comm, [exchange(7)]), growth(comm, [exchange(n) for n in (0, 1, 8, 100_000)])


def test_one_plan_serves_all_lengths_of_an_uneven_all_to_all() -> None:
    for first, later in on_threads(2, exchanges):
        assert first > 0
        assert later == 0


def endless_sizes(comm: Any) -> list[int]:
    x = np.zeros(100_000, np.float32)
    before, held = comm.memory_held, []
    for count in range(1, x.size + 1):
        comm.all_reduce(x[:count])
        if count % 500 == 0:
            held.append(comm.memory_held - before)
    return held


def test_100_000_sizes_take_bounded_memory() -> None:
    [held] = on_threads(1, endless_sizes)
    assert MOST / 2 < max(held) <= MOST
