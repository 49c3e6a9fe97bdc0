"""What groups take when they are made: nothing of it waits for kernels of ranks that are ready before others."""

from __future__ import annotations

from .programs import ran
from .ranks import BUILT

pytestmark = BUILT

FIRST_CALL = """
import numpy as np
from tests.gpu.gpu_arrays import GpuArray, on_gpu

def main(comm):
    x = GpuArray(np.ones(1000, "float32"))
    comm.all_reduce(x)
    return int(x.get(comm).sum())

print(on_gpu(main, 3, device=None))
"""

# How often a kernel's attributes were asked for, and of how many kernels.
LOADED = """
import ctypes
import ringreduce
from tests.gpu.gpu_arrays import library

kernels, cuda = ctypes.c_int(), library()
comms = ringreduce.local_group(2, device=0)
print(ctypes.CDLL(str(cuda.LIBRARY)).ringreduce_emulated_attributes(ctypes.byref(kernels)), kernels.value)
"""

LARGER_STACK = """
import time

import numpy as np
import ringreduce
from tests.gpu.gpu_arrays import GpuArray, library

library()
one, other = (ringreduce.local_group(2, device=0) for _ in range(2))
floats, integers = ([GpuArray(np.ones(1000, dtype)) for _ in one] for dtype in ("float32", "int32"))
one[0].all_reduce(floats[0])
time.sleep(0.5)  # for its kernel to begin; where it does so later, there is nothing to wait for
for comm, x in zip([*other, one[1]], [*integers, floats[1]]):
    comm.all_reduce(x)
for comm, x in zip([*one, *other], [*floats, *integers]):
    print(x.get(comm).sum())
"""

AFTER_A_REPLAY = """
import numpy as np
import ringreduce
from tests.gpu.gpu_arrays import GpuArray, library, pieces_of_memory, wait_for

cuda = library()
arrays = [GpuArray(np.ones(1000, "float32")) for _ in range(6)]
streams, event = [cuda.Stream() for _ in range(3)], cuda.Event()
one, other = (ringreduce.local_group(2, device=0) for _ in range(2))
graphs = []
for comm, array, stream in zip(one, arrays, streams):
    with cuda.captured(stream) as graph:
        comm.all_reduce(array, stream=stream.handle.value)
    graphs.append(graph)


def taken_by_a_group():
    before = pieces_of_memory()
    comms = ringreduce.local_group(2, device=0)
    taken = pieces_of_memory() - before
    for comm, array in zip(comms, arrays[2:]):
        comm.all_reduce(array)
    for comm, array in zip(comms, arrays[2:]):
        assert (array.get(comm) == 2).all()
        comm.close()
    return taken


other[0].all_reduce(arrays[4], stream=streams[2].handle.value)  # it waits, and so do the replays
event.record(streams[2])
for comm, graph, stream in zip(one, graphs, streams):
    cuda.call("wait", event.handle, stream.handle)
    graph.launch(stream)
    comm.close()
print(taken_by_a_group() > 0)
other[1].all_reduce(arrays[5])
for graph, stream in zip(graphs, streams):
    wait_for(stream.handle.value)
    graph.close()
arrays[2:4] = [GpuArray(np.ones(1000, "float32")) for _ in range(2)]
print(taken_by_a_group())
"""


def _lines(program, **environment):
    return ran("-c", program, **{"RINGREDUCE_EMULATED_BLOCKS": "8", **environment}).stdout.splitlines()


def test_no_rank_launches_before_all_have_their_memory():
    assert _lines(FIRST_CALL, RINGREDUCE_EMULATED_SLOW_MEMORY="100") == ["[3000, 3000, 3000]"]


def test_a_rank_loads_each_kernel_that_it_may_launch_once():
    """One for each family of dtypes, one for quantised messages, one for those of two ranks."""
    times, kernels = map(int, _lines(LOADED)[0].split())
    assert (times, kernels) == (2 * 6, 6)


def test_stacks_are_as_large_as_any_kernel_needs_before_a_rank_launches():
    wanted = ["2000.0"] * 2 + ["2000"] * 2
    assert _lines(LARGER_STACK, RINGREDUCE_EMULATED_STACK="1192") == wanted


def test_what_a_replay_uses_is_no_other_groups():
    """It has not begun when the group is closed. What it uses is given back when its graph is gone."""
    assert _lines(AFTER_A_REPLAY) == ["True", "0"]
