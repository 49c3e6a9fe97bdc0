"""Many groups of a process: each claims a small, equal part of its GPUs' thread blocks until it closes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ringreduce

from .emulated_nccl import EMULATED_NCCL
from .gpu_arrays import GpuArray, library
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        HAS_CARD or not EMULATED_LIBRARY.exists(), reason="on a card, or not built: make emulated"
    ),
]

GPUS = [0, 1]  # each has the rank of that number, of every group
COUNTS = (100, 30_000)  # with flags, and where they belong


def together(call, group):
    """call(comm) in a thread for each rank. The first rank's error is raised when all are done."""
    with ThreadPoolExecutor(len(group)) as pool:
        done = [pool.submit(call, comm) for comm in group]
    return [each.result() for each in done]


def made(number, **how):
    """Groups, one after the other, and on each rank an array for each count."""
    library()
    groups = [ringreduce.local_group(len(GPUS), timeout=20, **how) for _ in range(number)]
    for group in groups:
        together(lambda comm: reduced(comm, new_arrays(comm)), group)
    return groups


def new_arrays(comm):
    library().call("choose_device", GPUS[comm.rank])
    return [GpuArray(np.full(count, comm.rank + 1, "float32")) for count in COUNTS]


def reduced(comm, arrays):
    for x in arrays:
        comm.all_reduce(x)
    check(comm, arrays)


def check(comm, arrays):
    for x in arrays:
        assert (x.get(comm) == sum(rank + 1 for rank in range(comm.size))).all()


def close(groups):
    for group in groups:
        for comm in group:
            comm.close()


def all_at_once(groups):
    """Kernels of all groups wait at the same time: the ranks call them in opposite orders."""
    arrays = {comm: new_arrays(comm) for group in groups for comm in group}

    def calls(rank):
        own = [group[rank] for group in groups]
        for comm in own if rank == 0 else reversed(own):
            for x in arrays[comm]:
                comm.all_reduce(x)
        for comm in own:
            check(comm, arrays[comm])

    together(calls, GPUS)


@pytest.mark.parametrize(("number", "how"), [(18, {"device": GPUS}), (32, {})])
def test_groups_of_one_process(number, how):
    """With messages, which take blocks as long as half of the GPU's are free, and without."""
    groups = made(number, **how)
    all_at_once(groups)
    close(groups)


def test_beyond_them_an_error_says_what_to_do(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", "/nowhere")
    groups, beyond = made(32), ringreduce.local_group(2)
    said = (
        "a GPU that 1 rank uses runs 64 thread blocks at the same time, and other groups have claimed 64 of .*: "
        r"close groups, .* RINGREDUCE_GPU_TRANSPORT=nccl \(rank 0: NCCL cannot be loaded"
    )

    def refused(comm):
        arrays = new_arrays(comm)
        with pytest.raises(ringreduce.Error, match=said):
            comm.all_reduce(arrays[0])
        assert comm.all_reduce(np.ones(3))[0] == comm.size

    together(refused, beyond)
    all_at_once(groups)
    close(groups[:1])  # which gives its claim back
    together(lambda comm: reduced(comm, new_arrays(comm)), beyond)
    close([*groups[1:], beyond])


def test_beyond_them_nccl_serves_ranks_with_gpus_of_their_own(monkeypatch, nccl):
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))
    before = nccl.ringreduce_emulated_nccl_alive()
    groups = made(34)
    assert nccl.ringreduce_emulated_nccl_alive() == before + 2 * len(GPUS)
    all_at_once(groups)
    close(groups)


def test_beyond_them_ranks_that_share_a_gpu_are_refused(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "4")
    library()
    groups = [ringreduce.local_group(2, device=0) for _ in range(2)]
    with pytest.raises(
        ringreduce.Error, match="a GPU that 2 ranks share runs 4 thread blocks .* claimed 4 of"
    ):
        ringreduce.local_group(2, device=0)
    close(groups)
