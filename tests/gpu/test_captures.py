"""What a group does while another thread of the process captures a stream."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from .emulated_nccl import EMULATED_NCCL
from .gpu_arrays import GpuArray, library, new_stream, on_gpu, wait_for
from .limits import PATIENCE
from .probe import HAS_CARD
from .programs import ran
from .ranks import ON_EITHER

pytestmark = ON_EITHER

# In a process of its own: it has no memory of earlier groups, so this group takes its own while a stream is captured.
BESIDE = """
import numpy as np
from tests.gpu.gpu_arrays import GpuArray, library, on_gpu, wait_for

cuda = library()
arrays = [GpuArray(np.ones(1000, "float32")) for _ in range(2)]
stream = cuda.Stream()
with cuda.captured(stream, cuda.GLOBAL) as graph:
    on_gpu(lambda comm: comm.all_reduce(arrays[comm.rank]), 2)  # and the group ends
graph.close()
print(on_gpu(lambda comm: bool((arrays[comm.rank].get(comm) == 2).all()), 2))
"""
RUNNERS = {
    "kernels": {"RINGREDUCE_EMULATED_BLOCKS": "8"},
    "nccl": {"RINGREDUCE_GPU_TRANSPORT": "nccl", "RINGREDUCE_NCCL_LIBRARY": str(EMULATED_NCCL)},
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_group_beside_a_global_capture(runner):
    if HAS_CARD and runner != "kernels":
        pytest.skip("on a card, ranks of one GPU have kernels")
    assert ran("-c", BESIDE, **RUNNERS[runner]).stdout == "[True, True]\n"


def _captured_while_the_other_allocates(comm, first, meet):
    cuda, x = library(), GpuArray(np.ones(1000, "float32"))
    stream = new_stream()
    if comm.rank != first:
        meet.wait()  # the other captures now
        GpuArray(np.zeros(10, "float32"))
        wait_for(comm.device_stream)
        meet.wait()
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, stream=stream.handle.value)
        if comm.rank == first:
            meet.wait()
            meet.wait()
    graph.launch(stream)
    wait_for(stream.handle.value)
    assert (x.get(comm) == comm.size).all()
    comm.barrier()
    graph.close()


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_are_threads_capture_side_by_side(first):
    on_gpu(_captured_while_the_other_allocates, 2, first, threading.Barrier(2, timeout=PATIENCE))
