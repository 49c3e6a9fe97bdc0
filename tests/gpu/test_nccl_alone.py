"""One rank over NCCL, from its first call to its end: a smoke test that any card can run with its own libnccl.so.2."""

from __future__ import annotations

import numpy as np
import pytest

from .emulated_nccl import MARKS
from .gpu_arrays import GpuArray, library, new_stream, on_gpu, wait_for

pytestmark = MARKS


def _all_there_is(comm):
    cuda, data = library(), np.arange(1000, dtype="float32")
    x, out = GpuArray(data), GpuArray(np.zeros(1000, "float32"))
    comm.all_reduce(x, algorithm="nccl")  # which the registration includes from then on
    comm.register(x)
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        getattr(comm, collective)(x, out=out, algorithm="nccl")
        assert (out.get(comm) == data).all(), collective
    work = comm.all_reduce(x, algorithm="ring", async_op=True)
    work.wait()
    stream = new_stream()
    with cuda.captured(stream) as graph:
        comm.all_reduce(x, out=out, op="avg", algorithm="nccl", stream=stream.handle.value)
    for _ in range(2):
        graph.launch(stream)
    wait_for(stream.handle.value)
    assert (out.get(comm) == data).all()
    graph.close()
    comm.deregister(x)


@pytest.mark.parametrize("world", [1])
def test_one_rank(world):
    on_gpu(_all_there_is, world)
