"""Kinds of arrays: what is taken, what is refused, what is left alone."""

from __future__ import annotations

import array
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringreduce
from tests.conftest import on_processes, on_threads


def on_two(function):
    return on_threads(2, function)


def test_arrays_that_are_not_contiguous():
    def rank_main(comm):
        for x in (
            np.ones((6, 8), "float32")[:, ::2],
            np.ones((6, 8), "float32").T,
            np.ones(10, "float32")[::-1],
            np.ones((4, 4, 4), "int64")[1:3, :, 2],
        ):
            comm.all_reduce(x)
            assert (x == 2).all()
            out = np.zeros((*x.shape, 2), x.dtype)
            comm.all_reduce(x, out=out[..., 1])
            assert (out[..., 1] == 4).all() and (out[..., 0] == 0).all() and (x == 2).all()
            gathered = np.zeros((2 * x.shape[0], *x.shape[1:], 2), x.dtype)[..., 0]
            comm.all_gather(x, out=gathered)
            assert (gathered == 2).all()
            comm.broadcast(x, 1)
            work = comm.all_reduce(x, async_op=True)
            work.wait()
            assert (x == 4).all()

    on_two(rank_main)


def test_done_means_that_the_values_are_there():
    def rank_main(comm):
        x = np.ones((50, 4), "float32")[:, 1]
        work = comm.all_reduce(x, async_op=True)
        while not work.done():
            pass
        assert (x == 2).all()

    on_two(rank_main)


def test_only_the_elements_themselves_are_written():
    def rank_main(comm):
        whole = np.zeros((10, 10), "float32")
        whole[2:5, 3:7] = 1
        comm.all_reduce(whole[2:5, 3:7])
        assert whole.sum() == 24 and (whole[2:5, 3:7] == 2).all()

    on_two(rank_main)


def test_messages_of_arrays_that_are_not_contiguous():
    def rank_main(comm):
        x = np.arange(20.0)[::2]
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            got = np.zeros(20)[::2]
            assert comm.recv(got, 0) is got and (got == x).all()

    on_two(rank_main)


@pytest.mark.parametrize("kind", ["contiguous", "strided"])
def test_read_only(kind):
    def rank_main(comm):
        x = np.ones((4, 4), "float32")[:, :: 1 if kind == "contiguous" else 2]
        x.flags.writeable = False
        out = np.zeros_like(x)
        with pytest.raises(ValueError, match="x is read-only"):
            comm.all_reduce(x)
        with pytest.raises(ValueError, match="x is read-only"):
            comm.broadcast(x)
        with pytest.raises(ValueError, match="out is read-only"):
            comm.all_reduce(out, out=x)
        with pytest.raises(ValueError, match="out is read-only"):
            comm.reduce_scatter(np.concatenate([x, x]), out=x)
        with pytest.raises(ValueError, match="x is read-only"):
            comm.recv(x, 1 - comm.rank)
        assert (comm.all_reduce(x, out=out) == 2).all()
        assert (comm.all_gather(x) == 1).all()

    on_two(rank_main)


def test_zero_sizes_and_zero_dimensions():
    def rank_main(comm):
        for shape in [(0,), (3, 0), (0, 2, 5)]:
            x = np.zeros(shape, "float32")
            assert comm.all_reduce(x) is x
            assert comm.all_gather(x).shape == (2 * shape[0], *shape[1:])
            comm.broadcast(x, 1)
            assert comm.all_to_all(np.zeros((0, 4), "int8")).shape == (0, 4)
            comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)
        x = np.array(3.0)
        assert comm.all_reduce(x) is x and x == 6 and x.shape == ()
        assert comm.all_gather(x).tolist() == [6.0, 6.0]
        assert comm.broadcast(x, 0) == 6

    on_two(rank_main)


def test_other_byte_orders_and_types_are_refused():
    def rank_main(comm):
        for dtype in (">f4", "longdouble", "clongdouble", "U3", "O", "datetime64[s]"):
            with pytest.raises(TypeError, match="x has dtype"):
                comm.all_reduce(np.zeros(4, dtype))
        for x in ([1.0, 2.0], 3.0, "text", None):
            with pytest.raises(TypeError, match="x"):
                comm.all_reduce(x)
        assert (comm.all_reduce(np.ones(2)) == 2).all()

    on_two(rank_main)


def test_unaligned_arrays():
    def rank_main(comm):
        x = np.frombuffer(bytearray(4 * 100 + 1), "float32", 100, 1)
        x[:] = 1
        comm.all_reduce(x)
        assert (x == 2).all()
        assert (comm.all_gather(x) == 2).all()

    on_two(rank_main)


def test_buffers():
    def rank_main(comm):
        x = bytearray([1, 2, 3])
        assert comm.all_reduce(x) is x and x == bytearray([2, 4, 6])
        floats = array.array("d", [1.5, 2.5])
        comm.all_reduce(memoryview(floats))
        assert floats.tolist() == [3.0, 5.0]
        assert comm.all_gather(bytearray(b"ab")).tobytes() == b"abab"
        with pytest.raises(ValueError, match="read-only"):
            comm.all_reduce(memoryview(b"ab"))
        for code in "HIL":
            whole = array.array(code, [1, 5])
            comm.all_reduce(memoryview(whole))
            assert whole.tolist() == [2, 10]
        with pytest.raises(TypeError):
            comm.all_reduce(memoryview(np.ones(1, "longdouble")))

    on_two(rank_main)


class Exported:
    """Something that knows nothing but DLPack."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_dlpack():
    def rank_main(comm):
        x = np.ones((3, 4), "float32")
        exported = Exported(x)
        assert comm.all_reduce(exported) is exported and (x == 2).all()
        assert comm.all_gather(exported).shape == (6, 4)
        strided = np.ones((6, 4), "float32")
        comm.all_reduce(Exported(strided[:, ::2]))
        assert (strided[:, ::2] == 2).all() and (strided[:, 1::2] == 1).all()
        comm.all_reduce(np.ones(12, "float32"), out=exported)
        assert (x == 2).all()
        for dtype in ("uint16", "uint32", "uint64", "complex64", "complex128"):
            x = np.arange(5).astype(dtype)
            comm.all_reduce(Exported(x))
            assert (x == 2 * np.arange(5)).all()

    on_two(rank_main)


def test_overlaps_are_refused():
    def rank_main(comm):
        x = np.ones(100, "float32")
        with pytest.raises(ValueError, match="overlap"):
            comm.all_reduce(x[:50], out=x[10:60])
        with pytest.raises(ValueError, match="overlap"):
            comm.all_gather(x[20:30], out=x[5:25])
        with pytest.raises(ValueError, match="overlap"):
            comm.reduce_scatter(x[:20], out=x[5:15])
        with pytest.raises(ValueError, match="overlap"):
            comm.all_to_all(x[:20], out=x[2:22])
        assert (comm.all_reduce(x[:50], out=x[50:]) == 2).all() and (x[:50] == 1).all()

    on_two(rank_main)


def test_arrays_in_shared_memory_and_their_parts():
    def rank_main(comm):
        whole = ringreduce.empty((4, 50_000))
        whole[:] = 1
        comm.all_reduce(whole[1:3])
        assert (whole[1:3] == 3).all() and (whole[0] == 1).all() and (whole[3] == 1).all()
        comm.all_reduce(whole.reshape(-1)[77_777:], out=np.empty(4 * 50_000 - 77_777, "float32"))
        comm.all_reduce(whole[2], out=whole[3])
        assert (whole[3] == 3 * comm.size).all()
        # Peers may have mapped what is given back; what comes next must not be mistaken for it.
        for length in (10_000, 400_000, 20_000):
            for value in range(4):
                x = ringreduce.zeros(length, "float64")
                assert (x == 0).all()
                x[:] = value
                assert (comm.all_reduce(x) == value * comm.size).all()
                del x

    on_processes(3, rank_main)


def test_two_ranks_share_the_work_only_if_both_reach_all_arrays():
    places = list(product(("shared", "private"), ("shared", "private", "in place")))

    def array_in(place, count):
        return ringreduce.empty(count) if place == "shared" else np.empty(count, "float32")

    def rank_main(comm):
        for count, all_places in product((5_000, 16_384, 99_991), product(places, places)):
            source, target = all_places[comm.rank]
            x = array_in(source, count)
            out = x if target == "in place" else array_in(target, count)
            numbers = np.arange(count, dtype="float32")
            for call in range(3):
                x[:] = numbers + comm.rank + call
                comm.all_reduce(x, out=out, algorithm="one_shot")
                assert np.array_equal(out, 2 * numbers + 1 + 2 * call), (count, all_places)
                assert out is x or np.array_equal(x, numbers + comm.rank + call), (count, all_places)

    on_processes(2, rank_main)


def test_arrays_made_before_a_fork_are_not_mistaken_for_ones_own():
    mine = ringreduce.empty(100_000)
    mine[:] = 1

    def rank_main(comm):
        own = ringreduce.empty(100_000)
        own[:] = comm.rank
        comm.all_reduce(own)
        out = comm.all_reduce(mine, out=np.empty_like(mine))
        return own[5], out[5]

    assert on_processes(3, rank_main) == [(3, 3)] * 3
    assert (mine == 1).all()


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), max_size=4).map(tuple),
    world=st.integers(1, 4),
    order=st.sampled_from("CF"),
    step=st.sampled_from([1, 2, -1]),
)
def test_any_shape(shape, world, order, step):
    def rank_main(comm):
        x = np.full(shape, comm.rank + 1, "int32", order=order)
        x = x[::step] if shape else x
        want = np.full(x.shape, world * (world + 1) // 2)
        assert np.array_equal(comm.all_reduce(x, out=np.empty_like(x)), want)
        assert comm.all_gather(x).shape == ((x.shape[0] * world, *x.shape[1:]) if shape else (world,))
        comm.all_reduce(x)
        assert np.array_equal(x, want)

    on_threads(world, rank_main)
