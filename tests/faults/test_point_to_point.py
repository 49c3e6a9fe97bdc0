"""Messages whose other end never comes: it dies, closes, is late, or meant another tag."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from ranks import Ranks, assert_lost, die, failure_of, run

import ringreduce
from tests.conftest import on_threads
from tests.processes import metronome, within

SMALL, LARGE = 4, 2_000_000  # float32: sent whole at once, and only when the receive is there


def _x(count=SMALL, value=1.0):
    return np.full(count, value, "float32")


def _wait_for_the_dead(comm, board, call):
    comm.barrier()
    board.note(comm.rank)
    if comm.rank == 1:
        time.sleep(0.2)
        die("kill", board, 1)
    if comm.rank == 2:
        time.sleep(1.5)  # lives, and does something else
    if comm.rank != 0:
        return failure_of(comm.barrier)
    calls = {
        "any source": lambda: comm.recv(_x()),
        "any source in the background": lambda: comm.recv(_x(), async_op=True).wait(),
        "named": lambda: comm.recv(_x(), 1),
        "another tag": lambda: comm.recv(_x(), 1, tag=9),
        "named behind another": lambda: [comm.recv(_x(), 2, async_op=True), comm.recv(_x(), 1)],
        "large send": lambda: comm.send(_x(LARGE), 1),
        "large send in the background": lambda: comm.send(_x(LARGE), 1, async_op=True).wait(),
    }
    return failure_of(calls[call])


@pytest.mark.parametrize(
    "call",
    ["any source", "any source in the background", "named", "another tag", "named behind another",
     "large send", "large send in the background"],
)  # fmt: skip
def test_the_other_end_dies(call):
    ranks = Ranks(_wait_for_the_dead, 3, call)
    found = ranks.outcomes()
    at = ranks.board.read(1, 3)
    assert_lost(found[:2], {1: at})
    assert found[2].value[0].rank == 1


def _stream_from_the_dying(comm, board, source):
    x = _x(LARGE)
    comm.barrier()
    if comm.rank == 1:
        threading.Timer(0.05, die, ("kill", board, 1)).start()
        while True:
            comm.send(x, 0)
    return failure_of(lambda: comm.recv(x, source))


@pytest.mark.parametrize("source", [1, None])
def test_dies_in_the_middle_of_a_body(source):
    ranks = Ranks(_stream_from_the_dying, 2, source)
    assert_lost(ranks.outcomes(), {1: ranks.board.read(1, 3)})


def _outlive(comm, board, background):
    """Rank 1 closes; rank 0 then still gets what 1 had sent, and waits for 2, until that closes too."""
    if comm.rank == 1:
        comm.send(_x(SMALL, 1), 0, tag=1)
        comm.close()
    elif comm.rank == 2:
        time.sleep(0.4)
        comm.send(_x(SMALL, 2), 0)
        comm.send(_x(SMALL, 3), 0)
        board.note(2, 3)
        comm.close()
    else:

        def receive(**kwargs):
            if not background:
                return comm.recv(_x(), **kwargs)
            return comm.recv(_x(), async_op=True, **kwargs).wait()

        found = [receive() for _ in range(2)]
        found.append(receive(tag=1))
        assert [(y[0], source) for y, source in found] == [(2, 2), (3, 2), (1, 1)]
        with pytest.raises(ringreduce.PeerLost, match="all other ranks closed") as caught:
            receive()
        assert caught.value.rank is None
        return time.monotonic() - board.read(2, 3)
    return None


@pytest.mark.parametrize("background", [False, True])
def test_all_others_close(background):
    assert run(_outlive, 3, background)[0] < within()


@pytest.mark.parametrize("call", ["recv", "recv any", "send", "async recv", "async recv any", "async send"])
def test_the_only_other_rank_closes(call):
    def rank_main(comm):
        if comm.rank == 1:
            time.sleep(0.1)
            comm.close()
            return
        background = call.startswith("async")
        with pytest.raises(ringreduce.PeerLost, match="closed") as caught:
            if "send" in call:
                work = comm.send(_x(LARGE), 1, async_op=background)
            else:
                work = comm.recv(_x(), None if "any" in call else 1, async_op=background)
            assert background
            work.wait(20)
        assert caught.value.rank == 1

    on_threads(2, rank_main)


def test_one_of_several_waits_is_for_a_closed_rank():
    """The oldest is for a rank that lives."""

    def rank_main(comm):
        if comm.rank == 1:
            comm.close()
        elif comm.rank == 0:
            first = comm.recv(_x(), 2, async_op=True)
            second = comm.recv(_x(), 1, async_op=True)
            with pytest.raises(ringreduce.PeerLost) as caught:
                second.wait(20)
            assert caught.value.rank == 1 and isinstance(first.exception(), ringreduce.PeerLost)
        else:
            with pytest.raises(ringreduce.PeerLost):
                comm.recv(_x(), 0)

    on_threads(3, rank_main)


@pytest.mark.parametrize("background", [False, True])
def test_a_timeout_tells_of_messages_with_other_tags(background):
    def rank_main(comm):
        if comm.rank == 1:
            for tag in range(4, 9):
                comm.send(_x(7), 0, tag=tag)
            comm.send(_x(LARGE), 0, tag=3, async_op=True)
            with pytest.raises(ringreduce.TimeoutError, match="tag 2"):
                comm.recv(_x(), 0)
            return
        began = time.monotonic()
        with metronome, pytest.raises(ringreduce.TimeoutError) as caught:
            work = comm.recv(_x(7), tag=2, timeout=0.3, async_op=background)
            assert background, work
            work.wait()
        assert 0.25 < time.monotonic() - began < within(0.3 + 1)
        text = str(caught.value)
        assert "waiting for any rank in recv(float32[7], tag 2) by rank 0 from any rank" in text
        assert "arrived but not asked for: send(float32[7], tag 4) from rank 1, " in text
        assert "and 3 more)" in text
        assert caught.value.rank is None

    on_threads(2, rank_main)


def test_each_wait_has_a_timeout_of_its_own():
    def rank_main(comm):
        if comm.rank == 0:
            first = comm.recv(_x(), 1, tag=1, async_op=True)
            began = time.monotonic()
            second = comm.recv(_x(), 1, tag=2, timeout=0.2, async_op=True)
            with metronome, pytest.raises(ringreduce.TimeoutError, match="tag 2"):
                second.wait()
            assert time.monotonic() - began < within(0.2 + 1)
            assert isinstance(first.exception(), ringreduce.TimeoutError)
        else:
            with pytest.raises(ringreduce.TimeoutError):
                comm.recv(_x(), 0)

    on_threads(2, rank_main)


@pytest.mark.parametrize("source", [1, None, 0])
def test_closing_ends_the_waits_of_other_threads(source):
    def rank_main(comm):
        if comm.rank == 0:
            threading.Timer(0.1, comm._c.leave).start()
            for call in (lambda: comm.recv(_x(), source), lambda: comm.recv(_x(), source)):
                with pytest.raises(ringreduce.ClosedError):
                    call()
        else:
            with pytest.raises(ringreduce.PeerLost) as caught:
                comm.recv(_x(), 0)
            assert caught.value.rank == 0

    on_threads(2, rank_main)


def test_a_mismatch_ends_other_waits_too():
    def rank_main(comm):
        if comm.rank == 0:
            others = [comm.recv(_x(), tag=5, async_op=True), comm.recv(_x(), 1, tag=6, async_op=True)]
            with pytest.raises(ringreduce.MismatchError, match="tag 7"):
                comm.recv(_x(3), 1, tag=7)
            for work in others:
                with pytest.raises(ringreduce.MismatchError, match="tag 7"):
                    work.wait(20)
        else:
            comm.send(_x(2), 0, tag=7)
            with pytest.raises(ringreduce.MismatchError, match=r"recv\(float32\[3\], tag 7\)"):
                comm.recv(_x(), 0)

    on_threads(2, rank_main)
