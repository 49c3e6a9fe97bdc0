"""What kernels and NCCL have in common as runners of collectives, and what each of them is told apart by."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

import ringreduce
from ringreduce import errors
from tests.communicator.collectives import test_custom as custom

from .gpu_arrays import GpuArray, integers, library, new_stream, on_gpu, wait_for
from .ranks import EMULATED_ONLY

pytestmark = EMULATED_ONLY


@pytest.fixture
def kernels(few_blocks):
    pass


RUNNERS = ["kernels", "over_nccl"]


@pytest.fixture
def runner(request):
    return request.getfixturevalue(request.param)


def on(*runners):
    return pytest.mark.parametrize("runner", runners, indirect=True)


# --- algorithms written in Python --------------------------------------------------------------------------


def _by_function(comm, function):
    for count in (1, 5, 70_001):
        total = sum(integers(rank, count) for rank in range(comm.size))
        for in_place in (True, False):
            for _ in range(2):
                x = GpuArray(integers(comm.rank, count))
                out = x if in_place else GpuArray(np.zeros(count, "float32"))
                comm.all_reduce(x, out=out, algorithm=function)
                assert (out.get(comm) == total).all(), (count, in_place)


@on(*RUNNERS)
@pytest.mark.parametrize(
    ("function", "world"),
    [
        *((custom.everybody, world) for world in (1, 2, 3, 5)),
        *((function, 2) for function in (custom.saved_from_a_message, custom.run_across_the_end)),
        *((function, 3) for function in (custom.late_reader, custom.other_answer_first)),
    ],
)
def test_functions_are_algorithms(runner, function, world):
    on_gpu(_by_function, world, function)


def _by_name(comm):
    x = GpuArray(np.ones(1000, "float32"))
    comm.all_reduce(x, algorithm="all_at_once_on_gpu")
    assert (x.get(comm) == comm.size).all()
    with pytest.raises(ValueError, match="broadcast, not all_reduce"):
        comm.all_reduce(x, algorithm=custom.from_rank_0)
    x = GpuArray(np.full(10, comm.rank + 5, "float32"))
    with pytest.raises(ValueError, match="root must be 0"):
        comm.broadcast(x, 1, algorithm=custom.from_rank_0)
    comm.broadcast(x, algorithm=custom.from_rank_0)
    assert (x.get(comm) == 5).all()


@on(*RUNNERS)
def test_functions_are_algorithms_by_their_names(runner):
    ringreduce.register("all_at_once_on_gpu", custom.everybody)
    on_gpu(_by_name, 3)


def _captured(comm):
    cuda, x = library(), GpuArray(np.ones(1000, "float32"))
    stream = new_stream()
    comm.barrier()
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, algorithm=custom.everybody, stream=stream.handle.value)
    for _ in range(2):
        graph.launch(stream)
        wait_for(stream.handle.value)
    assert (x.get(comm) == 4).all()
    comm.barrier()
    graph.close()


@on(*RUNNERS)
def test_functions_in_graphs(runner):
    on_gpu(_captured, 2)


# --- what "auto" takes -------------------------------------------------------------------------------------


def _root_differs(comm):
    x = GpuArray(np.ones(100, "float32"))
    comm.all_reduce(x)
    with pytest.raises(errors.MismatchError, match="broadcast") as error:
        for _ in range(1000):
            comm.broadcast(x, 1 if comm.rank == 1 else 0)
            time.sleep(0.01)
    return str(error.value)


@pytest.mark.parametrize(
    ("runner", "algorithm"),
    [("kernels", "direct"), ("over_nccl", "tree")],
    indirect=["runner"],
)
def test_auto_is_chosen_by_what_runs(runner, algorithm):
    """In shared memory "direct" is, too, over networks "tree"."""
    for text in on_gpu(_root_differs, 3):
        assert f"broadcast(float32[100], root 1) by {algorithm}" in text


# --- order -------------------------------------------------------------------------------------------------


def _in_turn(comm):
    cuda, count = library(), 5000
    streams = [new_stream() for _ in range(2)]
    handles = [stream.handle.value for stream in streams]
    x, ones = GpuArray(np.zeros(count, "float32")), GpuArray(np.ones(count, "float32"))
    much, more = cuda.Memory(32 << 20), cuda.Memory(32 << 20)
    for algorithms in (("auto", "nccl"), ("nccl", "auto"), ("auto", "auto")):
        cuda.move(much.address, more.address, much.size, streams[0])  # takes a while
        cuda.move(x.address, ones.address, 4 * count, streams[0])
        for algorithm, handle in zip(algorithms, handles, strict=True):
            comm.all_reduce(x, algorithm=algorithm, stream=handle)
        wait_for(handles[1])
        assert (x.get(comm) == comm.size**2).all(), algorithms


@on(*RUNNERS)
def test_calls_come_one_after_the_other(runner, monkeypatch, request):
    """Whichever runners and streams they are for."""
    if request.node.callspec.params["runner"] == "kernels":
        request.getfixturevalue("over_nccl")
        monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "cuda")
    on_gpu(_in_turn, 3)


# --- leaving while another thread calls --------------------------------------------------------------------


def ended_by(errors_of, function, *args, **options):
    try:
        function(*args, **options)
    except ringreduce.Error as error:
        errors_of.append(error)


@on(*RUNNERS)
def test_leaving_while_a_call_waits_for_its_turn(runner):
    """Its turn comes when the communicator is left: until then a call of the CPU's is under way."""
    library()
    comms, found = ringreduce.local_group(2, device=0), []
    comm = comms[0]
    waits_for_rank_1 = threading.Thread(
        target=ended_by, args=(found, comm.all_reduce, np.ones(10)), kwargs={"timeout": 1.0}
    )
    behind = threading.Thread(target=ended_by, args=(found, comm.all_reduce, GpuArray(np.ones(1000))))
    for thread in (waits_for_rank_1, behind):
        thread.start()
        time.sleep(0.2)
    comm._c.leave()
    for thread in (waits_for_rank_1, behind):
        thread.join(30)
        assert not thread.is_alive()
    comms[1]._c.leave()
    assert [type(error) for error in found] == [errors.ClosedError] * 2, found


def _call_until_it_is_over(comm, streams):
    x, number = GpuArray(np.ones(1000, "float32")), 0
    while True:
        number += 1
        stream = streams[number % 2].handle.value
        comm.all_reduce(x, stream=stream)
        if number % 5 == 0:
            wait_for(stream)  # few of them are under way


@on(*RUNNERS)
def test_leaving_at_any_moment(runner):
    library()
    moments = random.Random(5)
    for _ in range(8):
        comms, found = ringreduce.local_group(2, device=0), []
        threads = []
        for comm in comms:
            streams = [new_stream() for _ in range(2)]
            threads.append(
                threading.Thread(target=ended_by, args=(found, _call_until_it_is_over, comm, streams))
            )
        for thread in threads:
            thread.start()
        time.sleep(moments.uniform(0, 0.2))
        comms[0]._c.leave()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        comms[1]._c.leave()
        kinds = {type(error) for error in found}
        assert len(found) == 2 and kinds <= {errors.ClosedError, errors.PeerLost}, found
