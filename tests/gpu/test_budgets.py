"""How much of its GPUs a group takes: thread blocks until it closes, and the priority of its own streams."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ringreduce
from tests.conftest import slow_rows
from tests.processes import python

from .emulated_nccl import EMULATED_NCCL
from .gpu_arrays import GpuArray, library
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY

pytestmark = [
    pytest.mark.skipif(
        HAS_CARD or not EMULATED_LIBRARY.exists(), reason="on a card, or not built: make emulated"
    ),
]

GPUS = [0, 1]  # each has the rank of that number, of every group, and 64 thread blocks


def together(call, group):
    """call(comm) in a thread for each rank. The first rank's error is raised when all are done."""
    with ThreadPoolExecutor(len(group)) as pool:
        done = [pool.submit(call, comm) for comm in group]
    return [each.result() for each in done]


def new_groups(number, **how):
    library()
    return [ringreduce.local_group(len(GPUS), timeout=20, **how) for _ in range(number)]


def close(groups):
    for group in groups:
        for comm in group:
            comm.close()


def used(comm):
    """The blocks of the largest kernel in some calls of this rank, and the priority of its own stream."""
    gpu, emulated = GPUS[comm.rank], ctypes.CDLL(str(EMULATED_LIBRARY))
    library().call("choose_device", gpu)
    emulated.ringreduce_emulated_largest_kernel(gpu)
    for count in (100, 30_000):  # with flags, and where they belong
        x = GpuArray(np.ones(count, "float32"))
        comm.all_reduce(x)
        comm.all_reduce(x, algorithm="ring", async_op=True).wait()
        assert (x.get(comm) == comm.size**2).all()
    priority = emulated.ringreduce_emulated_priority(ctypes.c_void_p(comm.device_stream))
    return emulated.ringreduce_emulated_largest_kernel(gpu), priority


def blocks_of(group):
    return [blocks for blocks, _ in together(used, group)]


# --- many groups of a process ------------------------------------------------------------------------------


def made(number, **how):
    """Groups whose ranks have met, one after the other."""
    groups = new_groups(number, **how)
    for group in groups:
        together(used, group)
    return groups


def all_at_once(groups):
    """Kernels of all groups wait at the same time: the ranks call them in opposite orders."""

    def calls(rank):
        library().call("choose_device", GPUS[rank])
        own = [(group[rank], GpuArray(np.full(30_000, rank + 1, "float32"))) for group in groups]
        for comm, x in own if rank == 0 else reversed(own):
            comm.all_reduce(x)
        for comm, x in own:
            assert (x.get(comm) == 3).all()

    together(calls, range(len(GPUS)))


@pytest.mark.parametrize(
    ("number", "how"), [(18, {"device": GPUS}), *slow_rows((29, {}), (64, {"max_blocks": 1}))]
)
def test_many_groups(number, how):
    """With messages, which take blocks as long as half of the GPU's are free, and without."""
    groups = made(number, **how)
    all_at_once(groups)
    close(groups)


def test_beyond_them_an_error_says_what_to_do():
    """In a process of its own: this one may have loaded NCCL already, which would serve the last group."""
    program = "from tests.gpu.test_budgets import refuse_beyond_them; refuse_beyond_them()"
    done = python("-c", program, RINGREDUCE_NCCL_LIBRARY="/nowhere")
    assert done.returncode == 0, done.stderr


def refuse_beyond_them():
    groups, [beyond] = made(29), new_groups(1)
    said = (
        "a GPU that 1 rank uses runs 64 thread blocks at the same time, and other groups have claimed 64 of .*: "
        r"close groups, lower their max_blocks, .* RINGREDUCE_GPU_TRANSPORT=nccl \(rank 0: NCCL cannot be loaded"
    )

    def refused(comm):
        with pytest.raises(ringreduce.Error, match=said):
            used(comm)
        assert comm.all_reduce(np.ones(3))[0] == comm.size

    together(refused, beyond)
    all_at_once(groups)
    close(groups[:1])  # which gives its claim back
    assert blocks_of(beyond) == [2, 2]
    close([*groups[1:], beyond])


def test_beyond_them_nccl_serves_ranks_with_gpus_of_their_own(monkeypatch, nccl):
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))
    before = nccl.ringreduce_emulated_nccl_alive()
    groups = made(31)
    assert nccl.ringreduce_emulated_nccl_alive() == before + 2 * len(GPUS)
    all_at_once(groups)
    close(groups)


# --- max_blocks and priority -------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "blocks"), [(None, 4), (1, 1), (5, 5), (64, 64)])
def test_collectives_take_as_many_blocks_as_they_may(given, blocks):
    """A sixteenth of what is left by default."""
    [group] = new_groups(1, max_blocks=given)
    assert blocks_of(group) == [blocks] * 2
    close([group])


def test_messages_are_part_of_them():
    """Four pairs have a block each."""
    groups = [new_groups(1, device=GPUS, max_blocks=given)[0] for given in (16, 7)]
    assert [blocks_of(group) for group in groups] == [[12] * 2, [7] * 2]
    with pytest.raises(ValueError, match="messages between GPUs need"):
        groups[1][0].send(GpuArray(np.ones(3, "float32")), 1, tag=None)
    close(groups)


def test_the_fewest_count_and_others_get_what_is_left():
    [whole] = new_groups(1)
    few = together(lambda comm: comm.split(0, max_blocks=3 if comm.rank == 1 else 40), whole)
    groups = [few, *new_groups(2, max_blocks=40)]
    assert [blocks_of(group) for group in groups] == [[3] * 2, [40] * 2, [64 - 3 - 40] * 2]
    close([*groups, whole])


def _inherited(comm):
    found = [used(comm)]
    with (
        comm.split(0) as same,
        comm.split(0, priority=-comm.rank) as other,
        other.split(0, max_blocks=3) as third,
    ):
        found += [used(same), used(other), used(third)]
    with comm.shrink() as left:
        found.append(used(left))
    return found


def test_new_groups_inherit_them():
    [group] = new_groups(1, max_blocks=5, priority=-2)
    for rank, found in enumerate(together(_inherited, group)):
        assert found == [(5, -2), (5, -2), (5, -rank), (3, -rank), (5, -2)]


def test_a_group_that_has_grown_has_them(tmp_path):
    library()
    with (
        ringreduce.init(0, 1, f"budgets-{tmp_path.name}", max_blocks=3, priority=-1) as comm,
        comm.grow() as grown,
    ):
        assert used(grown) == (3, -1)


def test_ranks_that_are_started_have_them():
    library()
    assert ringreduce.run(used, 1, start="spawn", max_blocks=3, priority=-1) == [(3, -1)]


def test_bad_values_name_the_argument():
    [alone] = ringreduce.local_group(1)
    for make in (
        lambda **how: ringreduce.run(used, 1, **how),
        lambda **how: ringreduce.init(0, 2, "nowhere", **how),
        lambda **how: ringreduce.join("nowhere", **how),
        lambda **how: ringreduce.local_group(2, **how),
        lambda **how: alone.split(0, **how),
    ):
        for name, value in (("max_blocks", -1), ("max_blocks", 65), ("priority", 1), ("priority", -6)):
            with pytest.raises(ValueError, match=f"{name} must be None or an integer from "):
                make(**{name: value})
        with pytest.raises(TypeError, match="priority must be None or an integer from -5 to 0"):
            make(priority="high")
