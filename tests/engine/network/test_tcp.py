"""What sockets could get wrong: very long messages, many communicators, forks, one's own secret."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import ringreduce
from tests.conftest import slowly
from tests.processes import gone


def on_tcp(function, ranks, **options):
    return ringreduce.run(function, ranks, transport="tcp", timeout=60, **options)


@pytest.mark.slow
def test_a_message_of_a_gibibyte():
    def rank_main(comm):
        x = np.zeros(1 << 30, "uint8")
        if comm.rank == 0:
            x[::4096] = np.arange(1 << 18) % 251
            comm.send(x, 1)
            return True
        comm.recv(x, 0)
        return bool((x[::4096] == np.arange(1 << 18) % 251).all() and x[1::4096].max() == 0)

    assert on_tcp(rank_main, 2) == [True, True]


def test_64_communicators():
    def rank_main(comm):
        groups = [comm.split(0, (comm.rank + i) % comm.size) for i in range(64)]
        arrays = [np.full(1000 + i, comm.rank, "float32") for i in range(64)]
        works = [group.all_reduce(x, async_op=True) for group, x in zip(groups, arrays, strict=True)]
        for work in reversed(works):
            assert (work.wait(30) == 6).all()
        for group in groups:
            group.close()

    on_tcp(rank_main, 4)


def test_a_child_does_not_keep_its_parents_connections():
    """Its parent's death is noticed while the child lives on."""
    reading, writing = os.pipe()

    def rank_main(comm):
        comm.barrier()
        if comm.rank == 1:
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
            os.write(writing, b"%d" % child)
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(ringreduce.PeerLost) as caught:
            comm.barrier()
        child = int(os.read(reading, 20))
        lives = not gone(child)
        os.kill(child, signal.SIGKILL)
        raise RuntimeError(f"rank {caught.value.rank} is lost, its child lives: {lives}")

    with pytest.raises(ringreduce.RankFailed, match="rank 1 is lost, its child lives: True"):
        ringreduce.run(rank_main, 2, transport="tcp", timeout=60)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("forks", [10, *slowly(40)])
def test_forks_while_another_thread_is_in_a_call(forks):
    """The child finds the transport as it is between two steps, not amid one, and its lock free."""

    def rank_main(comm):
        done = []

        def calls():
            x = np.zeros(200_000)
            while x[0] < comm.size:
                x[0] = bool(done)
                comm.all_reduce(x)

        thread = threading.Thread(target=calls)
        thread.start()
        for _ in range(forks):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                os._exit(comm._c.footprint < 0)
            assert os.waitpid(child, 0)[1] == 0, "the child hung or crashed"
        done.append(True)
        thread.join()

    on_tcp(rank_main, 2)


@pytest.mark.parametrize(
    ("name", "value"), [("RINGREDUCE_TCP_STREAMS", "none"), ("RINGREDUCE_TRANSPORT", "ip")]
)
def test_a_variable_that_makes_no_sense(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ringreduce.RankFailed, match=f"{name} must be .*, not '{value}'"):
        ringreduce.run(lambda comm: None, 2, transport=None if name.endswith("PORT") else "tcp", timeout=10)


@pytest.mark.parametrize("wanted", [("tcp", "shm"), ("auto", "shm+tcp")])
def test_ranks_that_want_different_transports(wanted):
    found = []

    def join(rank, exchange):
        try:
            ringreduce.init(rank, 2, exchange, transport=wanted[rank], timeout=5)
        except ValueError as error:
            found.append(str(error))

    barrier, blobs = threading.Barrier(2), {}

    def exchange_of(rank):
        def exchange(blob):
            blobs[rank] = blob
            barrier.wait(5)
            answer = [blobs[0], blobs[1]]
            barrier.wait(5)
            return answer

        return exchange

    threads = [threading.Thread(target=join, args=(rank, exchange_of(rank))) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 2 and all("transport must be the same on all ranks" in text for text in found)
