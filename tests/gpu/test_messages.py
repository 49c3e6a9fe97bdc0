"""Messages without a tag, which kernels of two ranks carry, on the emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest

import ringreduce

from .gpu_arrays import GpuArray, failure_of, library, new_stream, on_gpu, wait_for
from .limits import PATIENCE
from .probe import HAS_CARD
from .ranks import ON_EITHER

pytestmark = ON_EITHER

LARGE = 100_000  # elements: more than may be on their way


def values(rank, count):
    return np.random.default_rng(rank).integers(0, 9, count).astype("float32")


def room(count):
    return GpuArray(np.zeros(count, "float32"))


class Streamed:
    """A rank's communicator, its messages on a stream of its own."""

    def __init__(self, comm):
        self.comm, self.kept = comm, new_stream()
        self.stream = self.kept.handle.value

    def send(self, x, dest, **how):
        return self.comm.send(x, dest, tag=None, stream=self.stream, **how)

    def recv(self, x, source, **how):
        return self.comm.recv(x, source, tag=None, stream=self.stream, **how)

    def get(self, x):
        wait_for(self.stream)
        return x.get(self.comm)


def _ring(comm):
    """Everybody sends large messages before it receives: none of them waits for another pair's."""
    on = Streamed(comm)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    counts = (0, 3, LARGE, 1, 20_000)
    works, came = [], [room(count) for count in counts]
    for count in counts:
        works.append(on.send(GpuArray(values(comm.rank, count)), to, async_op=True))
    for into in came:
        works.append(on.recv(into, source, async_op=True))
    for work in works:
        work.wait()
    for count, into in zip(counts, came, strict=True):
        assert (on.get(into) == values(source, count)).all()


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_a_ring(world, monkeypatch):
    """Of one rank: to itself."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "200")  # so that one GPU has enough for five ranks
    on_gpu(_ring, world)


class Pinned:
    """CPU memory that CUDA's array interface describes, as Numba's pinned arrays are."""

    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, {**array.__array_interface__, "version": 3}


def _pinned(comm):
    library()
    x = Pinned(values(comm.rank, 1000))
    if comm.rank == 0:
        comm.send(x, 1)
        comm.send(room(3), 1)  # the GPU's library is loaded
    else:
        comm.recv(x, 0)
        comm.recv(np.zeros(3, "float32"), 0)
    assert (x.array == values(0, 1000)).all()


def test_cpu_memory_with_the_gpus_interface():
    on_gpu(_pinned, 2)


def _in_stream_order(comm):
    """A message waits for its stream's work, and later work for it."""
    on = Streamed(comm)
    peer = 1 - comm.rank
    much, more = library().Memory(32 << 20), library().Memory(32 << 20)
    late, x, came, out = GpuArray(values(comm.rank, LARGE)), room(LARGE), room(LARGE), room(LARGE)
    library().move(much.address, more.address, much.size, on.kept)  # takes a while
    library().move(x.address, late.address, 4 * LARGE, on.kept)
    if comm.rank == 0:
        assert on.send(x, peer) is None
        assert on.recv(came, peer) is came
    else:
        on.recv(came, peer)
        on.send(x, peer)
    library().move(out.address, came.address, 4 * LARGE, on.kept)
    assert (on.get(out) == values(peer, LARGE)).all()


def test_the_stream_s_order():
    on_gpu(_in_stream_order, 2)


def _others_go_on(comm):
    """Rank 0 waits for rank 2, and meanwhile sends, receives and reduces with all."""
    on = Streamed(comm)
    came = room(LARGE)
    if comm.rank == 0:
        waiting = on.recv(came, 2, async_op=True)
    for _ in range(3):
        x = GpuArray(values(comm.rank, LARGE))
        comm.all_reduce(x)
        assert (x.get(comm) == sum(values(rank, LARGE) for rank in range(comm.size))).all()
        if comm.rank == 0:
            on.send(x, 1, async_op=True).wait(PATIENCE)
        elif comm.rank == 1:
            on.recv(x, 0)
            wait_for(on.stream)
    comm.barrier()
    if comm.rank == 0:
        assert not waiting.done()
    comm.barrier()
    if comm.rank == 2:
        on.send(GpuArray(values(2, LARGE)), 0)
        wait_for(on.stream)
    elif comm.rank == 0:
        waiting.wait()
        assert (on.get(came) == values(2, LARGE)).all()


def test_nothing_waits_for_another_pair():
    on_gpu(_others_go_on, 3)


def _short_ones_leave(comm):
    """Before anybody receives them, even if their sender has closed by then."""
    on = Streamed(comm)
    host = comm.split(0)
    if comm.rank == 0:
        for rank in (5, 6):
            on.send(GpuArray(values(rank, 8000)), 1)
        wait_for(on.stream)
        comm.close()
    host.barrier()
    if comm.rank == 1:
        for rank in (5, 6):
            came = room(8000)
            on.recv(came, 0)
            assert (on.get(came) == values(rank, 8000)).all()
    host.barrier()
    host.close()


def test_short_messages_leave_at_once():
    on_gpu(_short_ones_leave, 2)


def _captured(comm):
    on = Streamed(comm)
    x, came = GpuArray(values(comm.rank, LARGE)), room(LARGE)
    peer = 1 - comm.rank
    comm.barrier()
    with library().captured(on.kept) as graph:
        for turn in (0, 1):
            if comm.rank == turn:
                on.send(x, peer)
            else:
                on.recv(came, peer)
    for _ in range(3):
        library().move(came.address, x.address, 4 * LARGE, on.kept)
        graph.launch(on.kept)
        assert (on.get(came) == values(peer, LARGE)).all()
    comm.barrier()
    graph.close()


def test_graphs():
    on_gpu(_captured, 2)


def _differ(comm, count, dtype):
    on = Streamed(comm)
    if comm.rank == 0:
        on.send(GpuArray(values(0, LARGE)), 1)
    elif comm.rank == 1:
        on.recv(GpuArray(np.zeros(count, dtype)), 0)
    wait_for(on.stream)
    error = failure_of(comm._c.check)
    assert isinstance(error, ringreduce.MismatchError), error
    assert f"rank 0: send(float32[{LARGE}]) to rank 1; rank 1: recv({dtype}[{count}]) from rank 0" in str(
        error
    )


@pytest.mark.parametrize(("count", "dtype"), [(LARGE - 1, "float32"), (3, "float32"), (LARGE, "int32")])
def test_ends_that_differ(count, dtype):
    on_gpu(_differ, 3, count, dtype)


def _late(comm):
    on = Streamed(comm)
    if comm.rank == 0:
        on.recv(room(3), 1)
        wait_for(on.stream)
    error = failure_of(comm._c.check)
    assert isinstance(error, ringreduce.TimeoutError), error
    assert "recv(float32[3]) by rank 0 from rank 1" in str(error)


def test_a_message_that_never_comes():
    on_gpu(_late, 2, timeout=0.7)


def _gone(comm, sends):
    on = Streamed(comm)
    if comm.rank == 1:
        return
    if comm.rank == 0:
        x = room(LARGE)
        on.send(x, 1) if sends else on.recv(x, 1)
        wait_for(on.stream)
    error = failure_of(comm._c.check)
    assert isinstance(error, ringreduce.PeerLost), error
    assert error.rank == 1
    assert f"in {'send' if sends else 'recv'}(float32[{LARGE}])" in str(error)


@pytest.mark.parametrize("sends", [True, False])
def test_a_peer_that_has_closed(sends):
    on_gpu(_gone, 3, sends, timeout=30)


def _refused(comm):
    x = room(3)
    with pytest.raises(ValueError, match="tag=None needs an array in GPU memory, and x is in CPU memory"):
        comm.send(np.zeros(3, "float32"), 0, tag=None)
    with pytest.raises(ValueError, match="source must be a rank if tag is None"):
        comm.recv(x, tag=None)
    with pytest.raises(ValueError, match="dest must be a rank from 0 to"):
        comm.send(x, comm.size, tag=None)
    comm.all_reduce(x)  # the group goes on


def test_what_is_refused():
    on_gpu(_refused, 2)


def _not_prepared(comm):
    x = room(3)
    with pytest.raises(ValueError, match=r"call comm.prepare\(device\) before the first collective"):
        comm.send(x, 0, tag=None)
    comm.all_reduce(x)
    with pytest.raises(ValueError, match=r"call comm.prepare\(device\) before the first collective"):
        comm.recv(x, 0, tag=None)
    with comm.split(0) as part:
        part.prepare(0)
        on = Streamed(part)
        sent = on.send(GpuArray(values(comm.rank, LARGE)), 1 - part.rank, async_op=True)
        came = on.recv(room(LARGE), 1 - part.rank)
        sent.wait()
        assert (on.get(came) == values(1 - comm.rank, LARGE)).all()


def test_groups_that_were_not_prepared():
    on_gpu(_not_prepared, 2, device=None)


def _too_few_blocks(comm):
    with pytest.raises(ValueError, match="while half of the GPU's thread blocks are free"):
        comm.send(room(3), 0, tag=None)


@pytest.mark.skipif(HAS_CARD, reason="a card has enough")
def test_too_few_blocks(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "8")
    on_gpu(_too_few_blocks, 2)
