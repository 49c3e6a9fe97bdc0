"""A process makes a context, which takes hundreds of MB, on the GPUs that it uses, and on no other."""

from __future__ import annotations

import pytest

from .emulated_nccl import EMULATED_NCCL
from .programs import ran
from .ranks import BUILT

pytestmark = BUILT

# All that a group does is done in threads that have no context.
PROGRAM = """
import ctypes
import os
import sys
import threading

import numpy as np
import ringreduce
from tests.gpu.gpu_arrays import GpuArray, library


def in_threads(function, *lists):
    threads = [threading.Thread(target=function, args=each) for each in zip(*lists)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def make(comm, device):
    library().call("choose_device", device)
    given[comm.rank] = GpuArray(np.full(50_000, comm.rank + 1, "float32")), library().Stream().handle.value


def use(comm, device):
    x, stream = given[comm.rank]
    comm.all_reduce(x, stream=stream)
    if sys.argv[1] == "kernels":
        comm.all_reduce(x, algorithm="ring", stream=stream)
    comm.all_reduce(x, async_op=True, stream=stream).wait()
    sent = comm.send(x, 1 - comm.rank, stream=stream, async_op=True)
    comm.recv(x, 1 - comm.rank, stream=stream)
    sent.wait()
    if comm.rank == 0:
        comm.close()
    else:
        comm._c.leave()  # which aborts what has not ended
    done.append(device)


def main(comms, devices):
    in_threads(make, comms, devices)
    in_threads(use, comms, devices)
    has_context = ctypes.CDLL(str(library().LIBRARY)).ringreduce_emulated_has_context
    contexts = [device for device in range(3) if has_context(device)]
    os.write(1, f"{sorted(done)} {contexts}\\n".encode())


def rank_of_two(comm):
    main([comm], [comm.rank + 1])


given, done = {}, []
if __name__ == "__main__" and sys.argv[1] != "processes":
    library()
    devices = [1, 2] if sys.argv[1] == "nccl" else [1, 1]
    main(ringreduce.local_group(2, device=devices), devices)
elif __name__ == "__main__":
    ringreduce.run(rank_of_two, 2)
"""
RUNNERS = {
    "kernels": {},
    "processes": {},
    "nccl": {"RINGREDUCE_GPU_TRANSPORT": "nccl", "RINGREDUCE_NCCL_LIBRARY": str(EMULATED_NCCL)},
}
DEVICES = {"kernels": [[1, 1], [1]], "nccl": [[1, 2], [1, 2]]}


@pytest.mark.parametrize("runner", RUNNERS)
def test_no_other_gpu_gets_a_context(runner, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = {"RINGREDUCE_EMULATED_DEVICES": "3", "RINGREDUCE_EMULATED_BLOCKS": "64", **RUNNERS[runner]}
    done = ran(program, runner, **settings)
    wanted = [DEVICES[runner]] if runner in DEVICES else [[[1], [1]], [[2], [2]]]
    assert sorted(done.stdout.splitlines()) == [" ".join(map(str, each)) for each in wanted]
