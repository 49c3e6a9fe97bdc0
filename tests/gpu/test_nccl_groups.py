"""Groups that use NCCL: how they come about and how they end, by the emulated libnccl.so.2."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest

import ringreduce
from ringreduce import errors
from ringreduce.build import nccl_library

from .emulated_nccl import EMULATED_NCCL, MARKS
from .gpu_arrays import GpuArray, failure_of, library, new_stream, on_gpu, wait_for
from .programs import ran
from .ranks import EMULATED_LIBRARY

REMOTE_ERROR = 6

pytestmark = MARKS


def failed(comm, kind):
    error = failure_of(lambda: comm._c.prepare_device(0))  # asks only whether the group is usable
    assert isinstance(error, kind), error
    return error


def alive_becomes(nccl, number):
    end = time.monotonic() + 10
    while nccl.ringreduce_emulated_nccl_alive() != number:
        assert time.monotonic() < end, nccl.ringreduce_emulated_nccl_alive()
        time.sleep(0.01)


def test_closing_leaves_nothing(nccl):
    before = nccl.ringreduce_emulated_nccl_alive()
    on_gpu(lambda comm: comm.all_reduce(GpuArray(np.ones(10, "float32"))).get(comm), 3)
    assert nccl.ringreduce_emulated_nccl_alive() == before


@pytest.mark.parametrize("algorithm", ["ring", "nccl"])
def test_an_asynchronous_error_ends_the_group_for_all(nccl, algorithm):
    before = nccl.ringreduce_emulated_nccl_alive()
    launched = threading.Barrier(3)

    def work(comm):
        x = GpuArray(np.ones(1000, "float32"))
        comm.all_reduce(x, algorithm=algorithm)
        x.get(comm)
        comm.barrier()
        if comm.rank != 2:
            comm.all_reduce(x, algorithm=algorithm)  # waits for rank 2
        launched.wait()
        if comm.rank == 2:
            nccl.ringreduce_emulated_nccl_fail(2, REMOTE_ERROR)
        error = failed(comm, errors.PeerLost)
        assert error.rank == 2 and "remote error" in str(error)
        wait_for(comm.device_stream)  # what waited was aborted
        with pytest.raises(errors.PeerLost, match="rank 2"):
            comm.all_reduce(x)

    on_gpu(work, 3)
    alive_becomes(nccl, before)


def test_a_rank_that_does_not_launch_its_graph_is_timed_out(nccl):
    """The host does not see when a graph is launched."""

    def work(comm):
        cuda = library()
        x = GpuArray(np.ones(10, "float32"))
        stream = new_stream()
        comm.barrier()
        with cuda.captured(stream) as graph:
            comm.all_reduce(x, stream=stream.handle.value)
        comm.barrier()
        if comm.rank == 0:
            graph.launch(stream)
        failed(comm, errors.TimeoutError)
        wait_for(stream.handle.value)  # NCCL's part of it was aborted
        graph.close()

    on_gpu(work, 2, timeout=1.0)


def test_a_rank_that_never_comes_is_timed_out():
    def work(comm):
        x = GpuArray(np.ones(10, "float32"))
        comm.all_reduce(x)
        x.get(comm)
        if comm.rank == 1:
            time.sleep(3)
            return
        comm.all_reduce(x)
        error = failed(comm, errors.TimeoutError)
        assert error.rank == 1 and "rank 1" in str(error)
        wait_for(comm.device_stream)

    on_gpu(work, 3, timeout=1.0)


def test_a_rank_that_closes_is_missed():
    def work(comm):
        x = GpuArray(np.ones(10, "float32"))
        comm.all_reduce(x)
        x.get(comm)
        comm.barrier()
        if comm.rank == 1:
            return
        comm.all_reduce(x)
        assert failed(comm, errors.PeerLost).rank == 1

    on_gpu(work, 3)


def test_ranks_that_call_different_things_are_told():
    def work(comm):
        x = GpuArray(np.ones(10, "float32"))
        comm.all_reduce(x)
        x.get(comm)
        with contextlib.suppress(errors.MismatchError):  # the other rank may have noticed it by now
            comm.broadcast(x) if comm.rank == 1 else comm.all_reduce(x)
        error = failed(comm, errors.MismatchError)
        assert "broadcast" in str(error) and "all_reduce" in str(error)

    on_gpu(work, 2)


SAME_BYTES = {  # of rank 0 and of rank 1: messages of the same lengths, of which NCCL notices nothing
    "op": ({"op": "sum"}, {"op": "max"}),
    "factor": ({}, {"factor": 2.0}),
    "dtype": ({"dtype": "float32"}, {"dtype": "int32"}),
    "wire": ({"wire": "bf16"}, {"wire": "fp16"}),
}


def _differing(comm, how, calls_before):
    x = GpuArray(np.ones(10, "float32"))
    for _ in range(calls_before):
        comm.all_reduce(x, algorithm="ring")
    how = dict(how[comm.rank])
    mine = GpuArray(np.ones(10, how.pop("dtype", "float32")))
    comm.all_reduce(mine, **how, algorithm="ring")
    with pytest.raises(errors.MismatchError, match="the ranks disagree about call #"):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            comm.all_reduce(x, algorithm="ring")
            time.sleep(0.005)


@pytest.mark.parametrize("what", SAME_BYTES)
@pytest.mark.parametrize("calls_before", [0, 20])
def test_calls_that_nccl_takes_for_the_same_are_told(what, calls_before):
    on_gpu(_differing, 2, SAME_BYTES[what], calls_before)


def test_calls_are_compared_without_end():
    """More comparisons than there are places for, none of which fails."""

    def work(comm):
        x = GpuArray(np.zeros(3, "float32"))
        for _ in range(1200):
            comm.all_reduce(x, algorithm="nccl")
        assert (x.get(comm) == 0).all()

    on_gpu(work, 2)


def test_leaving_ends_what_waits():
    meet = threading.Barrier(2, timeout=20)

    def work(comm):
        x = GpuArray(np.ones(10, "float32"))
        comm.all_reduce(x)
        x.get(comm)
        meet.wait()  # the group's own barrier may not be over here when the other rank leaves
        if comm.rank == 0:
            return
        stream = new_stream()
        comm.all_reduce(x, stream=stream.handle.value)
        comm._c.leave()
        wait_for(stream.handle.value)
        with pytest.raises(errors.ClosedError):
            comm.all_reduce(x)

    on_gpu(work, 2)


def test_leaving_ends_who_waits_for_the_others_to_connect(nccl):
    """In the middle of a call, by another thread."""
    before = nccl.ringreduce_emulated_nccl_alive()
    comms = ringreduce.local_group(2, timeout=20.0)
    found = []

    def main(comm):
        try:
            comm._c.prepare_device(0)
        except errors.Error as error:
            found.append(error)

    thread = threading.Thread(target=main, args=comms[:1])
    thread.start()
    time.sleep(0.3)
    begin = time.monotonic()
    comms[1]._c.leave()
    comms[0]._c.leave()
    thread.join(10)
    assert not thread.is_alive() and time.monotonic() - begin < 5
    assert isinstance(found[0], (errors.ClosedError, errors.PeerLost))
    assert nccl.ringreduce_emulated_nccl_alive() == before


def test_a_group_of_survivors_makes_its_own(nccl):
    def work(comm):
        x = GpuArray(np.ones(10, "float32"))
        comm.all_reduce(x)
        x.get(comm)
        with contextlib.suppress(errors.PeerLost):  # who is first in shrink() ends it for who is still here
            comm.barrier()
        if comm.rank == 2:
            comm._c.leave()
            return
        with comm.shrink() as smaller:
            y = GpuArray(np.ones(10, "float32"))
            smaller.all_reduce(y)
            assert (y.get(smaller) == 2).all()

    on_gpu(work, 3)


def test_split_groups_make_their_own():
    def work(comm):
        with comm.split(comm.rank % 2) as part:
            x = GpuArray(np.full(10, comm.rank, "float32"))
            part.all_reduce(x, algorithm="nccl")
            assert (x.get(part) == sum(range(comm.rank % 2, comm.size, 2))).all()

    on_gpu(work, 4)


# --- setting up --------------------------------------------------------------------------------------------


def meet(world, timeout=5.0):
    """What each rank's first use of its GPU raises."""
    comms = ringreduce.local_group(world, timeout=timeout)
    found = [None] * world

    def main(comm):
        try:
            comm._c.prepare_device(0)
        except Exception as error:
            found[comm.rank] = error

    threads = [threading.Thread(target=main, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return comms, found


def test_all_ranks_fail_where_one_cannot_join(nccl):
    before = nccl.ringreduce_emulated_nccl_alive()
    nccl.ringreduce_emulated_nccl_refuse(1)
    try:
        begin = time.monotonic()
        comms, found = meet(3)
        assert time.monotonic() - begin < 2
    finally:
        nccl.ringreduce_emulated_nccl_refuse(-1)
    assert all(isinstance(error, errors.Error) for error in found), found
    assert all("rank 1" in str(error) and "told to fail" in str(error) for error in found)
    for comm in comms:
        comm._c.leave()
    assert nccl.ringreduce_emulated_nccl_alive() == before


def test_a_rank_that_does_not_meet_the_others_is_timed_out():
    comms = ringreduce.local_group(3, timeout=1.0)
    found = [None] * 2

    def main(comm):
        try:
            comm._c.prepare_device(0)
        except errors.Error as error:
            found[comm.rank] = error

    threads = [threading.Thread(target=main, args=(comm,)) for comm in comms[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(isinstance(error, errors.TimeoutError) and error.rank == 2 for error in found), found
    for comm in comms:
        comm._c.leave()


def test_ranks_agree_about_the_transport(monkeypatch):
    comms = ringreduce.local_group(2, timeout=5.0)
    found = []
    turn = threading.Lock()
    asked = ["nccl", "cuda"]

    def main(comm):
        with turn:  # the environment is of the process
            monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", asked[comm.rank])
            thread = threading.Thread(target=meet_one, args=(comm,))
            thread.start()
            time.sleep(0.2)
        thread.join(10)

    def meet_one(comm):
        try:
            comm._c.prepare_device(0)
        except errors.Error as error:
            found.append(str(error))

    threads = [threading.Thread(target=main, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert len(found) == 2
    assert all("is nccl on rank 0 and cuda on rank 1" in text for text in found), found


def test_the_environment_is_checked(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "pigeon")
    with pytest.raises(ValueError, match="RINGREDUCE_GPU_TRANSPORT must be auto, cuda or nccl, not 'pigeon'"):
        meet(2)


PROGRAM = """
from tests.gpu.test_nccl_groups import meet
comms, found = meet(2)
print(*found, sep="\\n")
"""


def first_words(**environment):
    """What a process says whose ranks meet, with another environment: a library is loaded once."""
    library = {"RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY)}
    return ran("-c", PROGRAM, **{**library, **environment}).stdout.splitlines()


def test_without_a_library_the_error_says_so():
    lines = first_words(RINGREDUCE_NCCL_LIBRARY="/nowhere/libnccl.so.2")
    assert len(lines) == 2
    assert all("NCCL cannot be loaded" in line and "/nowhere/libnccl.so.2" in line for line in lines)


def test_an_old_library_is_refused():
    lines = first_words(RINGREDUCE_EMULATED_NCCL_VERSION="21703")
    assert all("has version 2.17.3" in line and "2.18.0 is the oldest" in line for line in lines), lines


def test_a_wheel_is_found(tmp_path, monkeypatch):
    assert nccl_library.find() == "" or nccl_library.find().endswith("libnccl.so.2")
    there = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    there.parent.mkdir(parents=True)
    there.symlink_to(EMULATED_NCCL)
    lines = first_words(RINGREDUCE_NCCL_LIBRARY=None, PYTHONPATH=str(tmp_path))
    assert lines == ["None", "None"]


def test_a_library_that_fits_is_taken():
    assert first_words(RINGREDUCE_EMULATED_NCCL_VERSION="21800") == ["None", "None"]
