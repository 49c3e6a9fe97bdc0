"""Python objects between ranks."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import ringreduce
from tests.conftest import on_processes, on_threads


class Explosive:
    """Its pickling, or unpickling, fails with a message of two lines."""

    def __init__(self, when):
        self.when = when

    def __getstate__(self):
        if self.when == "pickled":
            raise RuntimeError("the fuse\nis lit")
        return self.__dict__

    def __setstate__(self, state):
        raise RuntimeError("the fuse\nis lit")


def about(rank):
    """Of another type and size on every rank: the last one's has megabytes."""
    return [None, "text", {"rank": rank}, np.arange(1 << 19)][min(rank, 3)]


def same(left, right):
    return type(left) is type(right) and np.array_equal(left, right)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_objects_of_any_type_and_size_arrive(on_ranks, world):
    def rank_main(comm):
        own = about(comm.rank)
        assert all(map(same, comm.all_gather_object(own), map(about, range(world))))
        for root in range(world):
            gathered = comm.gather_object(own, root)
            assert (gathered is None) == (comm.rank != root)
            assert gathered is None or all(map(same, gathered, map(about, range(world))))
            is_root = comm.rank == root
            told = comm.broadcast_object(own if is_root else lambda: "not looked at", root)
            assert same(told, about(root)) and (told is own) == (is_root or own is None is told)
            given = [about(rank) for rank in range(world)] if is_root else None
            assert same(comm.scatter_object(given, root), own)
        return comm.all_reduce(np.ones(1))[0]

    assert on_ranks(world, rank_main) == [world] * world


def test_gathered_objects_are_copies():
    def rank_main(comm):
        own = [comm.rank]
        everybodys = comm.all_gather_object(own)
        everybodys[comm.rank].append("changed")
        return own

    assert on_threads(2, rank_main) == [[0], [1]]


LOCK = "TypeError: cannot pickle '_thread.lock' object"
CALLS = {
    "all_gather": (lambda comm, bad: comm.all_gather_object(bad if comm.rank else 0), f"obj on rank 1 {{}}: {LOCK}"),
    "gather": (lambda comm, bad: comm.gather_object(bad if comm.rank == 1 else 0, 2), f"obj on rank 1 {{}}: {LOCK}"),
    "broadcast": (lambda comm, bad: comm.broadcast_object(bad, 2), f"obj on rank 2 {{}}: {LOCK}"),
    "scatter": (lambda comm, bad: comm.scatter_object([0, bad, 0], 2), f"objs[1] on rank 2 {{}}: {LOCK}"),
    "too few": (lambda comm, _: comm.scatter_object([0, 1], 2),
                "objs on rank 2 must be a list of one object for each of the 3 ranks, not of 2"),
    "none": (lambda comm, _: comm.scatter_object(None, 2),
             "objs on rank 2 must be a list of one object for each of the 3 ranks, not NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_one_rank_cannot_send_fails_on_all_and_leaves_nothing_behind(on_ranks, name):
    call, message = CALLS[name]

    def rank_main(comm):
        with pytest.raises(ValueError) as caught:
            call(comm, threading.Lock())
        assert comm.all_gather_object(comm.rank) == [0, 1, 2]
        return str(caught.value)

    began = time.monotonic()
    assert set(on_ranks(3, rank_main)) == {message.format("cannot be pickled")}
    assert time.monotonic() - began < 20  # and not after the group's timeout


def test_the_failing_rank_has_the_cause_and_the_message_one_line():
    def rank_main(comm):
        with pytest.raises(ValueError) as caught:
            comm.all_gather_object(Explosive("pickled"))
        return str(caught.value), type(caught.value.__cause__).__name__

    message = "obj on rank 0 cannot be pickled: RuntimeError: the fuse"
    assert on_threads(2, rank_main) == [(message, "RuntimeError"), (message, "NoneType")]


def test_what_cannot_be_unpickled_is_said_to_be_so_where_it_arrives():
    def rank_main(comm):
        with pytest.raises(
            ValueError,
            match=r"^the object from rank 1 cannot be unpickled on this rank: RuntimeError: the fuse$",
        ):
            comm.all_gather_object(Explosive("unpickled") if comm.rank else 0)
        return comm.broadcast_object(comm.rank, 1)

    assert on_processes(2, rank_main) == [1, 1]


@pytest.mark.parametrize("root", [-1, 2, "0", None])
def test_a_bad_root_is_refused_at_once(root):
    comm = ringreduce.local_group(2)[0]
    for call in (comm.broadcast_object, comm.scatter_object):
        with pytest.raises((ValueError, TypeError), match="root"):
            call([0, 1], root)
    with pytest.raises((ValueError, TypeError), match="root"):
        comm.gather_object(0, root)


def test_a_rank_that_calls_something_else_or_dies_is_named():
    def other_call(comm):
        with pytest.raises(ringreduce.MismatchError, match="rank 1"):
            comm.broadcast_object(1, 0) if comm.rank else comm.all_gather_object(1)
        return True

    def leaves(comm):
        if comm.rank == 0:
            return True
        with pytest.raises(ringreduce.PeerLost) as caught:
            comm.all_gather_object(1)
        return caught.value.rank == 0

    assert on_processes(2, other_call) == [True, True]
    assert on_processes(3, leaves) == [True] * 3
