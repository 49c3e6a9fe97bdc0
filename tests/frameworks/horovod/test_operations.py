"""The operations of Horovod's API give what NumPy gives."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ringreduce  # noqa: E402
import ringreduce.horovod.torch as hvd  # noqa: E402
from ringreduce.frameworks.torch import build  # noqa: E402
from tests.conftest import slowly  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks, values  # noqa: E402
from tests.frameworks.torch.groups import is_shared  # noqa: E402

COMBINE = {
    hvd.Sum: np.add,
    hvd.Min: np.minimum,
    hvd.Max: np.maximum,
    hvd.Product: np.multiply,
}


def everybodys(count, ranks, dtype=torch.float32):
    return [values(count, rank, dtype).numpy() for rank in range(ranks)]


def expected(op, count, ranks, dtype=torch.float32):
    given = everybodys(count, ranks, dtype)
    if op is hvd.Average:
        total = functools.reduce(np.add, given)
        return total / ranks if dtype.is_floating_point else total // ranks
    return functools.reduce(COMBINE[op], given)


def where_tensors_lie(comm, memory):
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("RINGREDUCE_TORCH_MEMORY", memory)
    hvd.init(comm)
    large, part = torch.ones(1 << 18), torch.ones(1 << 18)
    for _ in range(3):
        hvd.allreduce_(large, op=hvd.Max)
        hvd.allreduce_(part[1:], op=hvd.Max)
    assert (large == 1).all()
    hvd.shutdown()
    return is_shared(large), is_shared(part)


@pytest.mark.parametrize("memory", ["moving", "ordinary"])
def test_tensors_that_are_communicated_repeatedly_move(memory):
    if not build.existing():
        pytest.skip("torch's backend has not been built for this torch: make fronts")
    assert ringreduce.run(where_tensors_lie, 2, memory) == [(memory == "moving", False)] * 2


def reductions(op, dtype):
    x = values(37, hvd.rank(), dtype)
    kept = x.clone()
    found = [hvd.allreduce(x, op=op), hvd.allreduce(x, op=op, name="named")]
    handle = hvd.allreduce_async(x, op=op)
    found.append(hvd.synchronize(handle))
    assert hvd.poll(handle)
    assert torch.equal(x, kept)
    group = hvd.grouped_allreduce([x, x[:5], values(40_000, hvd.rank(), dtype)], op=op)
    found += [group[0], group[2]]
    assert torch.equal(group[1], group[0][:5])
    for function in (hvd.allreduce_, lambda x, **more: hvd.synchronize(hvd.allreduce_async_(x, **more))):
        own = x.clone()
        assert function(own, op=op) is own
        found.append(own)
    mine = [x.clone(), x.clone(), x.clone()]
    assert hvd.grouped_allreduce_(mine[:2], op=op)[0] is mine[0]
    hvd.synchronize(hvd.grouped_allreduce_async_(mine[2:], op=op))
    return [one.numpy() for one in (*found, *mine)]


@pytest.mark.parametrize("op", [hvd.Average, *COMBINE], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("ranks", [2, *slowly(1)])
def test_all_reduce(op, dtype, ranks):
    for found in on_ranks(ranks, reductions, op, dtype):
        for one in found:
            np.testing.assert_array_equal(one, expected(op, one.size, ranks, dtype))


def scaled():
    x, whole = values(9, hvd.rank()), values(9, hvd.rank(), torch.int32)
    return [
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
        hvd.allreduce(x, prescale_factor=2.0),
        hvd.allreduce(whole, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5),
        hvd.allreduce(x, op=hvd.Max, prescale_factor=-1.0),
        hvd.allreduce(x, average=False),
        hvd.allreduce(x, average=True),
        hvd.allreduce(x.double(), compression=hvd.Compression.fp16, op=hvd.Sum),
        hvd.allreduce(x.reshape(3, 3).t(), op=hvd.Sum).t().flatten(),
    ]


def test_factors_older_arguments_compression_and_strides():
    for found in on_ranks(2, scaled):
        total, largest = expected(hvd.Sum, 9, 2), functools.reduce(np.maximum, [-x for x in everybodys(9, 2)])
        for one, value in zip(
            found, [total * 2, total, total, largest, total, total / 2, total, total], strict=True
        ):
            np.testing.assert_array_equal(one.numpy(), value)
        assert found[2].dtype == torch.int32
        assert found[6].dtype == torch.float64


def in_place_where_elements_share_memory():
    calls = [
        hvd.allreduce_,
        hvd.allreduce_async_,
        lambda x: hvd.grouped_allreduce_([torch.ones(2), x]),
        lambda x: hvd.broadcast_(x, 0),
        lambda x: hvd.broadcast_async_(x, 0),
    ]
    for call in calls:
        if hvd.rank() == 0:  # the others need not know
            with pytest.raises(ValueError, match="share memory"):
                call(torch.ones(1).expand(4))
    return hvd.allreduce(torch.ones(1).expand(4), op=hvd.Sum).tolist()


def test_in_place_where_elements_share_memory():
    assert on_ranks(2, in_place_where_elements_share_memory) == [[2.0] * 4] * 2


def moved():
    rank, size = hvd.rank(), hvd.size()
    rows = values(2 * (rank + 1) * 3, rank).view(-1, 3)
    whole = torch.arange(12).view(6, 2) + 100 * rank
    splits = [1, 2, 3] if rank else [2, 0, 1]
    return {
        "allgather": hvd.allgather(rows),
        "group": hvd.grouped_allgather([rows, whole[:1]]),
        "scalar": hvd.allgather(torch.tensor(rank)),
        "broadcast": hvd.broadcast(whole, 1),
        "in place": hvd.broadcast_(whole.clone(), 2),
        "alltoall": hvd.alltoall(whole),
        "splits": hvd.alltoall(whole, splits),
        "async": hvd.synchronize(hvd.alltoall_async(whole, torch.tensor(splits), name="x")),
        "reducescatter": hvd.reducescatter(torch.ones(size + 1, 2) * (rank + 1), op=hvd.Sum),
        "grouped_reducescatter": hvd.grouped_reducescatter([torch.ones(size), torch.ones(1) * rank]),
        "objects": hvd.allgather_object({"rank": rank}),
        "object": hvd.broadcast_object(rank, 1),
    }


def test_moving():
    found = on_ranks(3, moved)
    rows = np.concatenate([values(2 * (r + 1) * 3, r).view(-1, 3).numpy() for r in range(3)])
    whole = [np.arange(12).reshape(6, 2) + 100 * rank for rank in range(3)]
    splits = [[2, 0, 1], [1, 2, 3], [1, 2, 3]]
    for rank, one in enumerate(found):
        np.testing.assert_array_equal(one["allgather"], rows)
        np.testing.assert_array_equal(one["group"][0], rows)
        np.testing.assert_array_equal(one["group"][1], np.concatenate([x[:1] for x in whole]))
        assert one["scalar"].tolist() == [0, 1, 2]
        np.testing.assert_array_equal(one["broadcast"], whole[1])
        np.testing.assert_array_equal(one["in place"], whole[2])
        np.testing.assert_array_equal(
            one["alltoall"], np.concatenate([x[2 * rank : 2 * rank + 2] for x in whole])
        )
        starts = [sum(splits[r][:rank]) for r in range(3)]
        parts = [whole[r][starts[r] : starts[r] + splits[r][rank]] for r in range(3)]
        for received, counts in (one["splits"], one["async"]):
            np.testing.assert_array_equal(received, np.concatenate(parts))
            assert counts.tolist() == [splits[r][rank] for r in range(3)]
        assert one["reducescatter"].tolist() == [[6.0, 6.0]] * (2 if rank == 0 else 1)
        assert one["grouped_reducescatter"][0].tolist() == [1.0]
        assert one["grouped_reducescatter"][1].tolist() == ([1.0] if rank == 0 else [])
        assert one["objects"] == [{"rank": r} for r in range(3)]
        assert one["object"] == 1


def differentiated():
    rank, size = hvd.rank(), hvd.size()

    def gradient(function, rows=4):
        x = torch.ones(rows, 2, requires_grad=True)
        out = function(x)
        out = out[0] if isinstance(out, list | tuple) else out
        (out * (rank + 1)).sum().backward()
        return x.grad[:, 0].tolist()

    return {
        "sum": gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)),
        "average": gradient(lambda x: hvd.allreduce(x)),
        "fp16": gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum)),
        "group": gradient(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)),
        "allgather": gradient(hvd.allgather, rows=rank + 1),
        "broadcast": gradient(lambda x: hvd.broadcast(x, 1)),
        "alltoall": gradient(hvd.alltoall),
        "splits": gradient(lambda x: hvd.alltoall(x, [1] * size)),
        "scatter sum": gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
        "scatter average": gradient(lambda x: hvd.reducescatter(x)),
    }


def test_gradients():
    """Those of allgather and broadcast are averages, and reducescatter's sum counts every rank, as in Horovod."""
    for rank, found in enumerate(on_ranks(2, differentiated)):
        assert found["sum"] == [3.0] * 4
        assert found["average"] == [1.5] * 4
        assert found["fp16"] == [3.0] * 4
        assert found["group"] == [3.0] * 4
        assert found["allgather"] == [1.5] * (rank + 1)
        assert found["broadcast"] == [1.5 if rank == 1 else 0.0] * 4
        assert found["alltoall"] == [1.0, 1.0, 2.0, 2.0]
        assert found["splits"] == [1.0, 2.0, 0.0, 0.0]
        assert found["scatter sum"] == [2.0, 2.0, 4.0, 4.0]
        assert found["scatter average"] == [1.0, 1.0, 2.0, 2.0]


def sparse():
    rank = hvd.rank()
    x = torch.sparse_coo_tensor([[0, rank + 1]], [[1.0, 2.0], [3.0, 4.0]], (4, 2))
    found = [hvd.synchronize(hvd.sparse_allreduce_async(x, "s", op)) for op in (hvd.Sum, hvd.Average)]
    return [one.to_dense() for one in found]


def test_sparse_all_reduce():
    for total, average in on_ranks(2, sparse):
        assert total.tolist() == [[2, 4], [3, 4], [3, 4], [0, 0]]
        assert torch.equal(average, total / 2)


def adaptively():
    parallel, orthogonal = torch.tensor([2.0, 4.0]), torch.zeros(4)
    orthogonal[hvd.rank()] = 1.0
    group = hvd.grouped_allreduce([parallel, orthogonal], op=hvd.Adasum)
    mixed = torch.tensor([1.0, float(hvd.rank() == 1)])
    with pytest.raises(NotImplementedError, match="another op than Adasum"):
        hvd.reducescatter(mixed, op=hvd.Adasum)
    return [hvd.allreduce(parallel, op=hvd.Adasum), *group, hvd.allreduce(mixed, op=hvd.Adasum)]


def test_adasum():
    for alone, parallel, orthogonal, mixed in on_ranks(2, adaptively):
        assert alone.tolist() == parallel.tolist() == [2.0, 4.0]
        assert orthogonal.tolist() == [1.0, 1.0, 0.0, 0.0]
        # a = (1, 0) and b = (1, 1): a.b = 1, so half of a and three quarters of b.
        assert mixed.tolist() == [1.25, 0.75]


@pytest.mark.slow
def test_adasum_of_four_ranks_is_a_tree():
    for _, parallel, orthogonal, _ in on_ranks(4, adaptively):
        assert parallel.tolist() == [2.0, 4.0]
        assert orthogonal.tolist() == [1.0] * 4


FACTORS = [0.7361234, 1e-8, 1 / 3, 3e4]


def in_half(dtype):
    """Values of 16-bit floats with a factor, which differ if the factor is rounded to 16 bits first."""
    x = (torch.rand(64, generator=torch.Generator().manual_seed(0)) * 200 - 100).to(dtype)
    found = {}
    for factor in FACTORS:
        small = x / 1024 if factor > 1 else x
        before, after = {"prescale_factor": factor}, {"postscale_factor": factor}
        own = slice(32 * hvd.rank(), 32 * hvd.rank() + 32)
        whole = torch.zeros(64, dtype=dtype)
        whole[own] = hvd.reducescatter(small, op=hvd.Sum, **after)
        found[factor] = [
            hvd.allreduce(small, op=hvd.Sum, **before), hvd.allreduce(small, op=hvd.Sum, **after),
            hvd.allreduce(small, op=hvd.Max, **before), hvd.allreduce(small, op=hvd.Min, **after),
            hvd.grouped_allreduce([small], op=hvd.Sum, **after)[0], whole[own],
            hvd.allreduce(small, op=hvd.Adasum, **after), hvd.allreduce(small, op=hvd.Average, **before),
        ]  # fmt: skip
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_factors_are_applied_in_float32_and_rounded_once(dtype):
    x = (torch.rand(64, generator=torch.Generator().manual_seed(0)) * 200 - 100).to(dtype)
    for rank, results in enumerate(on_ranks(2, in_half, dtype)):
        for factor, found in results.items():
            small = x / 1024 if factor > 1 else x
            once, of_sum = ((number * small.float() * factor).to(dtype) for number in (1, 2))
            own = slice(32 * rank, 32 * rank + 32)
            wanted = [(2 * once), of_sum, once, once, of_sum, of_sum[own], once, once]
            for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
                assert torch.equal(one, other), (factor, place)


def averaged_integers(dtype):
    x = torch.tensor([-5, -3, -1, 0, 1, 3, 5, 7], dtype=dtype)
    own = x if hvd.rank() == 0 else torch.zeros_like(x)
    return [hvd.allreduce(own).tolist(), hvd.reducescatter(torch.cat([own, own]), op=hvd.Average).tolist()]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_averages_of_integers_are_rounded_towards_zero(dtype):
    assert on_ranks(2, averaged_integers, dtype) == [[[-2, -1, 0, 0, 0, 1, 2, 3]] * 2] * 2


def called():
    x = torch.sparse_coo_tensor([[hvd.rank(), 2]], [1.0, 1.0], (3,))
    sparse, dense = (
        hvd.sparse_allreduce_async(x, "s", hvd.Sum),
        hvd.allreduce_async(torch.ones(1), op=hvd.Sum),
    )
    return sparse().to_dense().tolist(), dense().tolist()


def test_handles_are_callable():
    assert on_ranks(2, called) == [([1.0, 1.0, 2.0], [2.0])] * 2


def refused():
    x = torch.ones(3)
    calls = {
        "not both": lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
        "power of two": lambda: hvd.allreduce(x, op=hvd.Adasum),
        "torch tensor": lambda: hvd.allreduce([1.0]),
        "sparse_allreduce_async": lambda: hvd.allreduce(x.to_sparse()),
        "CPU memory": lambda: hvd.allreduce(x.to("meta")),
        "at least one": lambda: hvd.grouped_allreduce_async([]),
        "do not divide evenly": lambda: hvd.alltoall(torch.ones(4)),
        "splits must be": lambda: hvd.alltoall(x, [1, 2, 3]),
        "root_rank must be": lambda: hvd.broadcast(x, 3),
        "must be Sum or Average": lambda: hvd.sparse_allreduce_async(x.to_sparse(), "s", hvd.Min),
        "at least one axis": lambda: hvd.reducescatter(torch.tensor(1.0)),
        "splits must be integers": lambda: hvd.alltoall(x, torch.tensor([1.9, 1.0, 0.1])),
        "must be integers, not .0.5": lambda: hvd.alltoall(x, [0.5, 1.5, 1]),
        "ranks of a process set must be integers": lambda: hvd.ProcessSet([0.5, 1]),
    }
    calls["bool have no average"] = lambda: hvd.allreduce(x > 0)  # on all ranks, once they have met
    for text, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=text):
            call()
    return hvd.allreduce(x, op=hvd.Sum).tolist()


def test_bad_arguments_raise_at_once_and_leave_the_job_usable():
    assert on_ranks(3, refused) == [[3.0] * 3] * 3


def test_nothing_works_before_init():
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="call hvd"):
        hvd.rank()
    with pytest.raises(ValueError, match="call hvd"):
        hvd.allreduce(torch.ones(1))


def asked():
    hvd.init()  # again: does nothing
    hvd.barrier()
    places = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    built = [hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.gloo_enabled(), hvd.nccl_built()]
    more = [hvd.ddl_built(), hvd.ccl_built(), hvd.cuda_built(), hvd.rocm_built(), hvd.mpi_threads_supported()]
    return places, any([*built, *more]), hvd.is_homogeneous(), hvd.is_initialized()


def test_queries():
    assert on_ranks(2, asked) == [([rank, 2, rank, 2, 0, 1], False, True, True) for rank in range(2)]
