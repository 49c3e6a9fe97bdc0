"""join(), and process sets."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import ringreduce.horovod.torch as hvd  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks  # noqa: E402


def uneven(batches, name):
    sums = []
    for batch in range(batches[hvd.rank()]):
        sums.append(hvd.allreduce(torch.ones(2), op=hvd.Sum, name=name and f"{name}{batch % 2}").tolist())
        hvd.grouped_allreduce([torch.ones(3), torch.ones(2, dtype=torch.int64)], name="group")
    return sums, hvd.join()


@pytest.mark.parametrize("name", ["grad", None])
def test_join_completes_the_others_operations_with_zeros(name):
    found = on_ranks(3, uneven, [4, 2, 6], name)
    sums = [[3.0] * 2] * 2 + [[2.0] * 2] * 2 + [[1.0] * 2] * 2
    assert [one for one, _ in found] == [sums[:4], sums[:2], sums]
    assert [last for _, last in found] == [2, 2, 2]


def joined_twice():
    lasts = []
    for first in (0, 1):
        if hvd.rank() != first:
            hvd.allreduce(torch.ones(2), name="x")
        lasts.append(hvd.join())
        hvd.barrier()
    return lasts


def test_join_can_be_called_again():
    assert on_ranks(2, joined_twice) == [[1, 0]] * 2


def with_other_operations():
    if hvd.rank() == 0:
        return hvd.join()
    for call in (lambda: hvd.allgather(torch.ones(1), name="x"), lambda: hvd.broadcast(torch.ones(1), 1)):
        with pytest.raises(hvd.HorovodInternalError, match="a rank has called join"):
            call()
    return hvd.join()


def test_other_operations_fail_after_a_rank_has_joined():
    assert on_ranks(2, with_other_operations) == [1, 1]


def pending_when_joining():
    """The operation is still under way when its rank joins."""
    handle = hvd.broadcast_async(torch.full((2,), float(hvd.rank())), 1, name="x")
    last = hvd.join()
    return hvd.synchronize(handle).tolist(), last in (0, 1)


def test_operations_submitted_before_join_complete():
    assert on_ranks(2, pending_when_joining) == [([1.0, 1.0], True)] * 2


# --- process sets ------------------------------------------------------------------------------------------------


def at_init(comm):
    even, odd = hvd.ProcessSet([2, 0]), hvd.ProcessSet([1])
    with pytest.raises(ValueError, match="not registered"):
        even.size()
    hvd.init(comm, process_sets=[even, odd])
    own = odd if hvd.rank() % 2 else even
    other = even if own is odd else odd
    with pytest.raises(ValueError, match="does not belong"):
        hvd.allreduce(torch.ones(1), process_set=other)
    with pytest.raises(ValueError, match="at run time"):
        hvd.add_process_set([0, 1])
    root = own.ranks[-1]
    x = torch.full((2,), float(hvd.rank()))
    found = {
        "text": [repr(one) for one in (hvd.global_process_set, even, odd)],
        "place": (own.rank(), own.size(), own.included(), other.included()),
        "all": hvd.allreduce(x, op=hvd.Sum, name="x").tolist(),
        "own": hvd.allreduce(x, op=hvd.Sum, name="x", process_set=own).tolist(),
        "async": hvd.synchronize(hvd.allreduce_async(x, name="y", process_set=own)).tolist(),
        "broadcast": hvd.broadcast(x, root, process_set=own).tolist(),
        "gather": hvd.allgather(x[:1], process_set=own).tolist(),
        "scatter": hvd.reducescatter(x.repeat(own.size()), op=hvd.Sum, process_set=own).tolist(),
        "alltoall": hvd.alltoall(torch.arange(own.size()) + 10 * hvd.rank(), process_set=own).tolist(),
        "objects": hvd.allgather_object(hvd.rank(), process_set=own),
        "object": hvd.broadcast_object(hvd.rank(), root, process_set=own),
    }
    hvd.barrier(own)
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(x, other.ranks[0], process_set=own)
    if own is even:
        with pytest.raises(
            hvd.HorovodInternalError, match=r"rank 0: .*float32\[1\].*; rank 2: .*float32\[3\]"
        ):
            hvd.allreduce(torch.ones(hvd.rank() + 1), process_set=even, name="z")
    hvd.shutdown()
    return found


def test_process_sets_at_init():
    import ringreduce

    even, single, other_even = ringreduce.run(at_init, 3, timeout=60)
    text = [
        "ProcessSet(process_set_id=0, ranks=[0, 1, 2], mpi_comm=None)",
        "ProcessSet(process_set_id=1, ranks=[0, 2], mpi_comm=None)",
        "ProcessSet(process_set_id=2, ranks=[1], mpi_comm=None)",
    ]
    shared = {"text": text, "all": [3.0, 3.0]}
    of_even = shared | {
        "own": [2.0, 2.0], "async": [1.0, 1.0], "broadcast": [2.0, 2.0], "gather": [0.0, 2.0],
        "scatter": [2.0, 2.0], "objects": [0, 2], "object": 2,
    }  # fmt: skip
    assert even == of_even | {"place": (0, 2, True, False), "alltoall": [0, 20]}
    assert other_even == of_even | {"place": (1, 2, True, False), "alltoall": [1, 21]}
    assert single == shared | {
        "place": (0, 1, True, False), "own": [1.0, 1.0], "async": [1.0, 1.0], "broadcast": [1.0, 1.0],
        "gather": [1.0], "scatter": [1.0, 1.0], "alltoall": [10], "objects": [1], "object": 1,
    }  # fmt: skip


class Split:
    """Stands for mpi4py's communicator of some ranks."""

    def __init__(self, ranks):
        self._ranks = ranks

    def allgather(self, rank):
        assert rank in self._ranks
        return self._ranks


def from_a_communicator():
    """The set differs by rank, as after a split."""
    own = hvd.add_process_set(hvd.ProcessSet(Split([1] if hvd.rank() == 1 else [0, 2])))
    return own.ranks, hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=own).item()


def test_a_process_set_from_an_mpi_communicator():
    found = on_ranks(3, from_a_communicator, sets="dynamic")
    assert found == [([0, 2], 2.0), ([1], 1.0), ([0, 2], 2.0)]


def at_run_time():
    found = []
    # Something is under way meanwhile, in another order on each rank.
    handle = hvd.allreduce_async(torch.ones(2), name="a") if hvd.rank() else None
    added = hvd.add_process_set([0, 1])
    handle = handle or hvd.allreduce_async(torch.ones(2), name="a")
    hvd.synchronize(handle)
    for bad in ([0, 1], [0, 3], []):
        with pytest.raises(ValueError, match="process set"):
            hvd.add_process_set(bad)
    again = hvd.add_process_set(hvd.ProcessSet([1, 2]))
    for one in (added, again):
        if one.included():
            found.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=one).item())
    assert hvd.remove_process_set(added)
    assert not hvd.remove_process_set(added)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(torch.ones(1), process_set=added)
    third = hvd.add_process_set([0, 1])
    return found, third.process_set_id, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


@pytest.mark.parametrize("variables", [{"sets": "dynamic"}, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}], ids=str)
def test_process_sets_at_run_time(variables):
    found = on_ranks(3, at_run_time, **variables)
    assert [sums for sums, _, _ in found] == [[2.0], [2.0, 2.0], [2.0]]
    assert [more for _, *more in found] == [[3, 3.0]] * 3


def from_ranks(comm):
    with pytest.raises(ValueError, match="'dynamic'"):
        hvd.init(comm, process_sets="static")
    for bad in ([0, 2], []):
        with pytest.raises(ValueError, match="from 0 to 1"):
            hvd.init(comm, process_sets=[hvd.ProcessSet(bad)])
    assert not hvd.is_initialized()
    hvd.init(comm)
    sums = [hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]
    hvd.shutdown()
    hvd.shutdown()
    hvd.init(comm)
    sums.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    hvd.shutdown()
    return sums


def test_init_again_after_shutdown():
    import ringreduce

    assert ringreduce.run(from_ranks, 2, timeout=60) == [[2.0, 2.0]] * 2
