"""What torch 2.15 adds: groups whose ranks change, hooks, and timeouts that are longer for a while."""

from __future__ import annotations

import re
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import ringreduce

torch = pytest.importorskip("torch")
dist = torch.distributed

pytestmark = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="groups whose ranks change came with torch 2.15"
)


def on_members(world, function):
    """Runs function(comm) in as many processes, each in a default group that has no ranks yet."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return ringreduce.run(_member, world, function, str(Path(folder) / "store"), timeout=100)


def _member(comm, function, path):
    store = dist.FileStore(path, -1)
    dist.init_process_group(
        "ringreduce",
        store=store,
        rank=comm.rank,
        world_size=comm.size,
        timeout=timedelta(seconds=20),
        enable_reconfigure=True,
    )
    try:
        return function(comm)
    finally:
        dist.destroy_process_group()


def handles(comm):
    """Everybody's, in the order of the ranks that they have in `comm`."""
    mine = np.frombuffer(dist._get_reconfigure_handle().encode(), dtype=np.uint8)
    return [bytes(one).decode() for one in comm.all_gather(mine).reshape(comm.size, -1)]


def summed(value):
    x = torch.full((4,), float(value))
    dist.all_reduce(x)
    return x[0].item()


def test_a_group_has_no_ranks_before():
    def body(comm):
        assert dist._supports_reconfigure()
        with pytest.raises(RuntimeError, match=r"has no ranks before reconfigure\(\)"):
            dist.all_reduce(torch.ones(1))

    on_members(2, body)


def test_a_list_gives_the_order():
    def body(comm):
        all_handles = handles(comm)
        dist._reconfigure(uuid=1, handles=all_handles[::-1]).wait()
        assert dist.get_rank() == comm.size - 1 - comm.rank
        return summed(10**comm.rank)

    assert on_members(3, body) == [111.0] * 3


def test_a_set_gives_all_the_same_order():
    def body(comm):
        dist._reconfigure(uuid=1, handles=set(handles(comm))).wait()
        ranks = [None] * comm.size
        dist.all_gather_object(ranks, comm.rank)
        assert ranks[dist.get_rank()] == comm.rank
        return tuple(ranks)

    (order,) = set(on_members(3, body))
    assert sorted(order) == [0, 1, 2]


def test_survivors_go_on_and_others_come_back():
    def body(comm):
        all_handles = handles(comm)
        dist._reconfigure(uuid=1, handles=all_handles).wait()
        sums = [summed(10**comm.rank)]
        if comm.rank == 1:  # leaves without a word
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).abort()
        else:
            with pytest.raises(RuntimeError, match="rank 1"):
                dist.all_reduce(torch.ones(1))
            dist._reconfigure(uuid=2, handles=[all_handles[2], all_handles[0]]).wait()
            assert (dist.get_rank(), dist.get_world_size()) == (0 if comm.rank == 2 else 1, 2)
            sums.append(summed(10**comm.rank))
            dist.barrier()
        comm.barrier()
        dist._reconfigure(uuid=3, handles=all_handles).wait()
        sums.append(summed(10**comm.rank))
        dist.monitored_barrier(timeout=timedelta(seconds=10))
        return sums

    assert on_members(3, body) == [[111.0, 101.0, 111.0], [111.0, 111.0], [111.0, 101.0, 111.0]]


def test_a_member_that_does_not_come():
    def body(comm):
        mine = dist._get_reconfigure_handle()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"waited 500 ms for rank 1 to join"):
            dist._reconfigure(1, [mine, "somebody"], timeout=timedelta(seconds=0.5))
        assert time.monotonic() - start < 10
        dist._reconfigure(2, [mine]).wait()
        return summed(5)

    assert on_members(1, body) == [5.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["other"], "did not receive this rank's own handle, ringreduce-"),
        (["same", "same"], "received a handle twice"),
    ],
)
def test_handles_that_cannot_be(given, said):
    def body(comm):
        with pytest.raises(RuntimeError, match=re.escape(said)):
            dist._reconfigure(1, given)

    on_members(1, body)


def test_a_uuid_is_good_for_once():
    def body(comm):
        mine = dist._get_reconfigure_handle()
        dist._reconfigure(7, [mine]).wait()
        with pytest.raises(RuntimeError, match="received the uuid 7 before"):
            dist._reconfigure(7, [mine])

    on_members(1, body)


def test_abort_hooks_hear_of_a_lost_rank():
    def body(comm):
        dist._reconfigure(1, handles(comm)).wait()
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        if comm.rank == 1:
            backend.abort()
            return []
        heard = []
        backend.register_abort_hook(1, lambda: heard.append("one"))
        backend.register_abort_hook(2, lambda: heard.append("two"))
        backend.unregister_abort_hook(1)
        with pytest.raises(RuntimeError, match="rank 1"):
            dist.all_reduce(torch.ones(1))
        deadline = time.monotonic() + 20
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        return heard

    assert on_members(2, body) == [["two"], []]


def test_more_time_until_the_first_operation_is_over():
    def body(comm):
        dist._reconfigure(1, [dist._get_reconfigure_handle()]).wait()
        group = dist.distributed_c10d._get_default_group()
        timeouts = [dist.all_reduce(torch.ones(1), async_op=True).timeout.total_seconds()]
        group._add_ephemeral_timeout(timedelta(seconds=5))
        group._add_ephemeral_timeout(timedelta(seconds=2))
        late = dist.irecv(torch.ones(1), 0)  # which is not over before there is something to receive
        timeouts.append(late.timeout.total_seconds())
        for _ in range(2):
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.wait()
            timeouts.append(work.timeout.total_seconds())
        dist.isend(torch.ones(1), 0).wait()
        late.wait()
        timeouts.append(dist.all_reduce(torch.ones(1), async_op=True).timeout.total_seconds())
        return timeouts

    assert on_members(1, body) == [[20.0, 27.0, 27.0, 27.0, 20.0]]
