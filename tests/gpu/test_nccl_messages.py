"""Messages without a tag over NCCL, by the emulated libnccl.so.2. They take part in the order of a rank's calls."""

from __future__ import annotations

import time

import numpy as np
import pytest

import ringreduce

from . import test_messages as programs
from .emulated_nccl import MARKS
from .gpu_arrays import GpuArray, on_gpu, wait_for
from .test_messages import LARGE, Streamed, room, values

pytestmark = MARKS


def test_the_stream_s_order():
    on_gpu(programs._in_stream_order, 2)


def test_graphs():
    on_gpu(programs._captured, 2)


@pytest.mark.parametrize(("count", "dtype"), [(LARGE - 1, "float32"), (3, "float32"), (LARGE, "int32")])
def test_ends_that_differ(count, dtype):
    on_gpu(programs._differ, 3, count, dtype)


def test_a_message_that_never_comes():
    on_gpu(programs._late, 2, timeout=0.7)


@pytest.mark.parametrize("sends", [True, False])
def test_a_peer_that_has_closed(sends):
    on_gpu(programs._gone, 3, sends, timeout=30)


def _among_collectives(comm):
    """Synchronous and asynchronous messages along a ring, with collectives on other streams between them."""
    on = Streamed(comm)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = GpuArray(np.ones(LARGE, "float32"))
    for number in range(40):
        count = (0, 3, LARGE, 1)[number % 4]
        given, came = GpuArray(values(comm.rank + number, count)), room(count)
        works = []
        for sends in (comm.rank > 0, comm.rank == 0):  # rank 0 receives first
            beside = {"async_op": number % 3 == 0}
            works.append(on.send(given, to, **beside) if sends else on.recv(came, source, **beside))
        if number % 5 == 0:
            comm.all_reduce(x)
        for work in works if number % 3 == 0 else []:
            work.wait()
        assert (on.get(came) == values(source + number, count)).all(), number
    assert (x.get(comm) == comm.size**8).all()


@pytest.mark.parametrize("world", [2, 3])
def test_among_collectives(world):
    on_gpu(_among_collectives, world)


def _later_ends_differ(comm):
    """Messages of a pair are compared now and then. NCCL takes these, which are as long, for the same."""
    on = Streamed(comm)
    for _ in range(20):
        x = room(100)
        on.send(x, 1) if comm.rank == 0 else on.recv(x, 0)
    wait_for(on.stream)
    comm.barrier()
    with pytest.raises(ringreduce.MismatchError, match=r"send\(float32\[100\]\).*recv\(int32\[100\]\)"):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            on.send(room(100), 1) if comm.rank == 0 else on.recv(GpuArray(np.zeros(100, "int32")), 0)
            time.sleep(0.005)


def test_later_ends_that_differ():
    on_gpu(_later_ends_differ, 2)


def _many(comm):
    """More labels than there are places for, and more messages than events."""
    on = Streamed(comm)
    x = room(3)
    for _ in range(17_000):
        on.send(x, 1) if comm.rank == 0 else on.recv(x, 0)
    wait_for(on.stream)
    assert comm.device_memory_held <= 2 << 20


def test_messages_without_end():
    on_gpu(_many, 2)


def _to_itself(comm):
    x = room(3)
    with pytest.raises(
        ValueError, match="sends to itself, which over NCCL takes a send and a recv that match"
    ):
        comm.send(x, comm.rank, tag=None)
    comm.all_reduce(x)  # the group goes on


def test_a_message_to_itself():
    on_gpu(_to_itself, 2)


def _not_prepared(comm):
    comm.all_reduce(room(3))
    with pytest.raises(ValueError, match=r"call comm.prepare\(device\) before the first collective"):
        comm.send(room(3), 0, tag=None)


def test_groups_that_were_not_prepared():
    on_gpu(_not_prepared, 2, device=None)
