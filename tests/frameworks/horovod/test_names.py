"""Names say which calls belong together: orders, differences, the cache, calls without a name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import ringreduce.horovod.torch as hvd  # noqa: E402
from ringreduce.horovod.cache import Cache  # noqa: E402
from ringreduce.horovod.job import job  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks  # noqa: E402


def in_any_order(rounds):
    names = [f"t{number}" for number in range(12)]
    turn = 5 if hvd.rank() else 1
    found = []
    for _ in range(rounds):
        order = [(turn * number) % len(names) for number in range(len(names))]
        handles = {
            names[n]: hvd.allreduce_async(torch.full((3,), float(n)), op=hvd.Sum, name=names[n])
            for n in order
        }
        found.append([hvd.synchronize(handles[name])[0].item() for name in reversed(names)])
    return found


@pytest.mark.parametrize("capacity", ["1024", "5", "0"])
def test_ranks_may_submit_in_different_orders(capacity):
    """Also with a cache that is too small for the names, and without one."""
    expected = [[float(2 * n) for n in reversed(range(12))]] * 4
    assert on_ranks(2, in_any_order, 4, HOROVOD_CACHE_CAPACITY=capacity) == [expected] * 2


def blocking_in_different_orders():
    first, second = ("a", "b") if hvd.rank() else ("b", "a")
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name=first)
    other = hvd.allreduce(torch.ones(2), op=hvd.Sum, name=second)
    return other.tolist(), hvd.synchronize(handle).tolist()


def test_a_rank_may_wait_for_what_another_submits_later():
    assert on_ranks(2, blocking_in_different_orders) == [([2.0] * 2, [2.0] * 2)] * 2


def different(call, again):
    messages = []
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError) as raised:
            call(hvd.rank())
        messages.append(str(raised.value))
    return messages, again()


DIFFERENCES = {
    "shape": lambda rank: hvd.allreduce(torch.ones(2 + rank // 2), name="x"),
    "dtype": lambda rank: hvd.allreduce(
        torch.ones(2, dtype=(torch.float32, torch.int32)[rank // 2]), name="x"
    ),
    "op": lambda rank: hvd.allreduce(torch.ones(2), name="x", op=(hvd.Sum, hvd.Min)[rank // 2]),
    "factor": lambda rank: hvd.allreduce(torch.ones(2), name="x", prescale_factor=1.0 + rank // 2),
    "root": lambda rank: hvd.broadcast(torch.ones(2), rank // 2, name="x"),
    "columns": lambda rank: hvd.allgather(torch.ones(rank, 2 + rank // 2), name="x"),
    "columns of alltoall": lambda rank: hvd.alltoall(torch.ones(3, 2 + rank // 2), name="x"),
    "rows of reducescatter": lambda rank: hvd.reducescatter(torch.ones(3 + rank // 2), name="x"),
    "group": lambda rank: hvd.grouped_allreduce([torch.ones(1)] * (1 + rank // 2), name="x"),
    "no name": lambda rank: hvd.allreduce(torch.ones(2 + rank // 2)),
    "object": lambda rank: hvd.broadcast_object(1, rank // 2),
}
SAID = {
    "shape": "ranks 0, 1: allreduce(float32[2], op=Average, prescale_factor=1.0, postscale_factor=1.0); rank 2: "
    "allreduce(float32[3], op=Average, prescale_factor=1.0, postscale_factor=1.0)",
    "dtype": "rank 2: allreduce(int32[2], ",
    "op": "rank 2: allreduce(float32[2], op=Min, ",
    "factor": "rank 2: allreduce(float32[2], op=Average, prescale_factor=2.0, ",
    "root": "ranks 0, 1: broadcast(float32[2], root_rank=0); rank 2: broadcast(float32[2], root_rank=1)",
    "columns": "ranks 0, 1: allgather(float32[*, 2]); rank 2: allgather(float32[*, 3])",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_an_error_on_every_rank(name):
    def again():
        return hvd.allreduce(torch.ones(2), op=hvd.Sum, name="y").tolist()

    found = on_ranks(3, different, DIFFERENCES[name], again)
    assert found == [found[0]] * 3
    messages, result = found[0]
    assert result == [3.0, 3.0]
    for message in messages:
        assert "the ranks disagree about operation" in message
        assert "rank 2: " in message
        assert SAID.get(name, "") in message


def changing():
    found = []
    for size in (2, 2, 3, 3, 2):
        found.append(len(hvd.allreduce(torch.ones(size), name="x")))
    # Rank 1 still has the old size in the cache when rank 0 announces the new one.
    with pytest.raises(hvd.HorovodInternalError, match="disagree"):
        hvd.allreduce(torch.ones(4 - 2 * hvd.rank()), name="x")
    return found


def test_a_name_may_change_its_shape():
    assert on_ranks(2, changing) == [[2, 2, 3, 3, 2]] * 2


def twice():
    handle = hvd.allreduce_async(torch.ones(2), name="x") if hvd.rank() == 0 else None
    if handle is not None:
        with pytest.raises(ValueError, match=r"'allreduce.x' is in use"):
            hvd.allreduce_async(torch.ones(2), name="x")
    hvd.broadcast(torch.ones(1), 0, name="x")  # another operation
    handle = handle or hvd.allreduce_async(torch.ones(2), name="x")
    return hvd.synchronize(handle).tolist()


def test_a_name_is_used_once_at_a_time():
    assert on_ranks(2, twice) == [[1.0, 1.0]] * 2


def unnamed():
    """More than there are names for such calls, all under way at once."""
    handles = [hvd.allreduce_async(torch.full((1,), float(n)), op=hvd.Sum) for n in range(300)]
    return [hvd.synchronize(handle).item() for handle in handles]


def test_calls_without_a_name_match_in_order():
    assert on_ranks(2, unnamed) == [[2.0 * n for n in range(300)]] * 2


def counted():
    """Returns how many messages the ranks exchanged in a steady step of many tensors, and of one."""
    comm = job().comm
    calls = []

    def counting(name, function):
        def count(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return count

    for name in ("all_reduce", "all_gather"):
        setattr(comm, name, counting(name, getattr(comm, name)))
    found = []
    for _ in range(3):
        hvd.barrier()
        calls.clear()
        group = [torch.ones(n + 1) for n in range(50)]
        hvd.grouped_allreduce(group, name="group")
        found.append(list(calls))
    return found


def test_a_steady_step_takes_two_messages():
    """One to negotiate, and one for fifty packed tensors; the first step announces the name."""
    first, *steady = on_ranks(2, counted)[0]
    assert first.count("all_gather") == 2
    assert steady == [["all_reduce", "all_reduce"]] * 2


def fused():
    comm = job().comm
    sizes = []

    def note(x, *args, function=comm.all_reduce, **kwargs):
        sizes.append(x.nbytes)
        return function(x, *args, **kwargs)

    comm.all_reduce = note
    found = []
    for _ in range(2):
        hvd.barrier()
        sizes.clear()
        handles = [hvd.allreduce_async(torch.full((100,), 1.0), op=hvd.Sum, name=f"t{n}") for n in range(20)]
        found.append([hvd.synchronize(handle)[0].item() for handle in handles])
    return found, [size for size in sizes if size > 100]


@pytest.mark.parametrize(
    ("threshold", "calls"), [("100000", [8000]), ("1000", [800] * 10), ("0", [400] * 20)]
)
def test_small_tensors_travel_together(threshold, calls):
    long = {"HOROVOD_FUSION_THRESHOLD": threshold, "HOROVOD_CYCLE_TIME": "200"}
    for found, sizes in on_ranks(2, fused, **long):
        assert found == [[2.0] * 20] * 2
        # What came before the first cycle ends may travel in two parts.
        assert sum(sizes) == 8000
        assert max(sizes) == max(calls)


def test_a_full_cache_forgets_the_name_used_longest_ago():
    cache = Cache(2)
    signature = ("barrier", (), ())
    for name in ("a", "b"):
        assert cache.excess() is None
        cache.add(name, signature)
    cache.use(cache.number("a", signature))
    assert cache.excess() == "b"
    assert cache.forget("b") == 1
    cache.add("c", signature)
    assert cache.number("c", signature) == 1
    assert cache.number("b", signature) is None
    assert cache.number("a", ("barrier", (("x", 1),), ())) is None
    assert len(cache) == 2
