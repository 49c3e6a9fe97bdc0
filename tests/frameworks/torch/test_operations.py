"""Every operation that c10d asks of a backend, against what its definition says, with exact values."""

from __future__ import annotations

import functools
import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.groups import on_process_group

WORLDS = [1, 2, 3, 4]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
# Types that are only moved.
OTHERS = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fnuz]
OTHERS += [torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []  # from 2.7 on
COUNTS = [0, 1, 7, 1000, 40_000]


def values(count, rank, dtype=torch.float32):
    """Small whole numbers, exact in every type and in every order of adding them; other ones on every rank."""
    x = (torch.arange(count) * 7 + rank * 3) % 4 + 1
    return x.bool() if dtype is torch.bool else x.to(torch.float32).to(dtype)


def same(x, y):
    assert x.dtype == y.dtype and x.shape == y.shape, f"{x.dtype}{list(x.shape)}, {y.dtype}{list(y.shape)}"
    x, y = x.reshape(-1), y.reshape(-1)
    assert torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)) or torch.equal(
        x, y
    )


def total(count, world, dtype):
    return sum(values(count, r).double() for r in range(world)).to(dtype)


# --- reductions ------------------------------------------------------------------------------------------------


def _all_reduce_dtypes(dtypes, counts):
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in dtypes:
        for count in counts:
            x = values(count, rank, dtype)
            dist.all_reduce(x)
            same(x, total(count, world, dtype))


@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_takes_every_type(world):
    on_process_group(world, _all_reduce_dtypes, FLOATS + SMALL_FLOATS + INTEGERS + COMPLEX, COUNTS)


def _operators():
    rank, world = dist.get_rank(), dist.get_world_size()
    op = dist.ReduceOp
    stack = torch.stack([values(50, r) for r in range(world)])
    expected = {op.SUM: stack.sum(0), op.PRODUCT: stack.prod(0), op.MIN: stack.amin(0), op.MAX: stack.amax(0)}
    for dtype in [torch.float32, torch.int32, torch.bfloat16]:
        for operator, result in expected.items():
            x = values(50, rank, dtype)
            dist.all_reduce(x, operator)
            same(x, result.to(dtype))
    x = values(50, rank)
    dist.all_reduce(x, op.AVG)
    torch.testing.assert_close(x, stack.mean(0))
    bits = stack.to(torch.int64)
    for operator, combine in [
        (op.BAND, torch.bitwise_and),
        (op.BOR, torch.bitwise_or),
        (op.BXOR, torch.bitwise_xor),
    ]:
        x = values(50, rank, torch.int64)
        dist.all_reduce(x, operator)
        result = bits[0]
        for line in bits[1:]:
            result = combine(result, line)
        same(x, result)
    for factor in [0.5, torch.tensor(0.5)]:
        for dtype in [torch.float32, torch.bfloat16]:
            x = values(50, rank, dtype)
            dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
            same(x, (stack.sum(0) * 0.5).to(dtype))
    x = torch.tensor([rank == 0, False, True])
    dist.all_reduce(x, op.MAX)
    same(x, torch.tensor([True, False, True]))
    x = torch.tensor([1 + 2j * rank])
    dist.all_reduce(x, op.AVG)
    same(x, torch.tensor([1 + 1j * (world - 1)]))


@pytest.mark.parametrize("world", [2, 3])
def test_operators(world):
    on_process_group(world, _operators)


def _refused():
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="float32"):
        dist.all_reduce(x, dist.ReduceOp.BAND)
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(torch.ones(3, dtype=torch.complex64), dist.ReduceOp.MAX)
    with pytest.raises(RuntimeError, match="elements"):
        dist.all_gather_into_tensor(torch.empty(5), x)
    with pytest.raises(RuntimeError, match="add up"):
        dist.all_to_all_single(torch.empty(4), torch.ones(4), [1, 2], [2, 2])
    dist.all_reduce(x)  # all of this harms nobody
    return x.tolist()


def test_what_is_refused_leaves_the_group_usable():
    assert on_process_group(2, _refused) == [[2.0] * 3] * 2


def _reduce(count):
    rank, world = dist.get_rank(), dist.get_world_size()
    for root in range(world):
        x = values(count, rank)
        dist.reduce(x, root)
        same(x, total(count, world, torch.float32) if rank == root else values(count, rank))


@pytest.mark.parametrize("world", WORLDS)
def test_reduce_changes_only_the_root(world):
    on_process_group(world, _reduce, 1000)


def _reduce_scatter():
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in [1, 1000, 40_000]:
        given = values(count * world, rank)
        before = given.clone()
        out = torch.empty(count)
        dist.reduce_scatter_tensor(out, given)
        same(out, total(count * world, world, torch.float32)[rank * count :][:count])
        same(given, before)
    for dtype in [torch.float32, torch.bfloat16]:
        out = torch.empty(10, dtype=dtype)
        dist.reduce_scatter_tensor(out, values(10 * world, rank, dtype), dist.ReduceOp.AVG)
        expected = total(10 * world, world, torch.float32) / world
        torch.testing.assert_close(out, expected[rank * 10 :][:10].to(dtype))
    sizes = [3 + 2 * r for r in range(world)]
    blocks = [values(n, rank) for n in sizes]
    out = torch.empty(sizes[rank])
    dist.reduce_scatter(out, blocks)
    same(out, total(sizes[rank], world, torch.float32))


@pytest.mark.parametrize("world", WORLDS)
def test_reduce_scatter(world):
    on_process_group(world, _reduce_scatter)


def _sparse():
    rank, world = dist.get_rank(), dist.get_world_size()
    for dense in [(), (3,)]:
        tensors = []
        for r in range(world):
            indices = torch.tensor([[r, 1, 4], [0, 2, 1]])[:, : 1 + r % 3]
            tensors.append(
                torch.sparse_coo_tensor(
                    indices, torch.ones(indices.shape[1], *dense) * (r + 1), (5, 3, *dense)
                )
            )
        x = tensors[rank].clone()
        dist.all_reduce(x)
        same(x.to_dense(), sum(t.to_dense() for t in tensors))
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (4,))
    dist.all_reduce(empty)
    same(empty.to_dense(), torch.zeros(4))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("world", [2, 3])
def test_sparse_all_reduce(world):
    on_process_group(world, _sparse)


# --- moving ----------------------------------------------------------------------------------------------------


def _moving(dtype):
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in [1, 1000]:
        mine = values(count, rank, dtype)
        everybody = [values(count, r, dtype) for r in range(world)]
        for root in range(world):
            x = mine.clone()
            dist.broadcast(x, root)
            same(x, everybody[root])
        out = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(out, mine)
        for block, expected in zip(out, everybody, strict=True):
            same(block, expected)
        flat = torch.empty(world * count, dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        same(flat.view(torch.uint8), torch.cat([x.view(torch.uint8) for x in everybody]))
        for root in range(world):
            out = [torch.empty_like(mine) for _ in range(world)] if rank == root else None
            dist.gather(mine, out, root)
            if rank == root:
                for block, expected in zip(out, everybody, strict=True):
                    same(block, expected)
            x = torch.empty_like(mine)
            dist.scatter(
                x, [values(count, 10 + r, dtype) for r in range(world)] if rank == root else None, root
            )
            same(x, values(count, 10 + rank, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.int16, *OTHERS], ids=str)
def test_moving(dtype):
    on_process_group(3, _moving, dtype)


def _uneven():
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [2 * r + 1 for r in range(world)]
    out = [torch.empty(n) for n in sizes]
    dist.all_gather(out, values(sizes[rank], rank))
    for r, block in enumerate(out):
        same(block, values(sizes[r], r))
    # What rank r sends to rank s: (r + 2 s) rows of 3.
    sent = [rank + 2 * s for s in range(world)]
    received = [r + 2 * rank for r in range(world)]
    given = torch.cat([values(n * 3, rank * world + s) for s, n in enumerate(sent)]).view(-1, 3)
    out = torch.empty(sum(received), 3)
    dist.all_to_all_single(out, given, received, sent)
    same(out, torch.cat([values(n * 3, r * world + rank) for r, n in enumerate(received)]).view(-1, 3))
    blocks = [torch.empty(n, 3) for n in received]
    dist.all_to_all(blocks, list(given.split(sent)))
    same(torch.cat(blocks), out)


@pytest.mark.parametrize("world", WORLDS)
def test_uneven_blocks(world):
    on_process_group(world, _uneven)


def _all_to_all():
    rank, world = dist.get_rank(), dist.get_world_size()
    for rows in [1, 5000]:
        given = torch.cat([values(rows, rank * world + s) for s in range(world)])
        out = torch.empty_like(given)
        dist.all_to_all_single(out, given)
        same(out, torch.cat([values(rows, r * world + rank) for r in range(world)]))


@pytest.mark.parametrize("world", WORLDS)
def test_all_to_all(world):
    on_process_group(world, _all_to_all)


def _odd_memory():
    rank, world = dist.get_rank(), dist.get_world_size()
    everybody = [values(24, r).view(4, 6) for r in range(world)]
    columns = torch.zeros(4, 12)
    x = columns[:, ::2]
    x.copy_(everybody[rank])
    dist.all_reduce(x)
    same(x, sum(everybody))
    assert not columns[:, 1::2].any()
    turned = everybody[rank].clone().t()
    dist.broadcast(turned, 0)
    same(turned, everybody[0].t())
    out = [torch.zeros(6, 4).t() for _ in range(world)]
    dist.all_gather(out, everybody[rank].t().contiguous().t())
    for block, expected in zip(out, everybody, strict=True):
        same(block, expected)
    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last) * (rank + 1)
    dist.all_reduce(image)
    same(image, torch.full((2, 3, 4, 4), float(world * (world + 1) // 2)))
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf.data)
    with torch.no_grad():
        dist.all_reduce(leaf)
    same(leaf.detach(), torch.full((3,), float(world * world)))


@pytest.mark.parametrize("world", [2, 3])
def test_odd_memory(world):
    on_process_group(world, _odd_memory)


def _nothing():
    rank, world = dist.get_rank(), dist.get_world_size()
    empty = torch.empty(0, 3)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.empty(0) for _ in range(world)], torch.empty(0))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    dist.all_reduce_coalesced([empty, torch.empty(0)])
    if rank == 0:
        dist.send(torch.empty(0), 1)
    elif rank == 1:
        dist.recv(torch.empty(0), 0)
    scalar = torch.tensor(3.0)
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(3.0 * world))


@pytest.mark.parametrize("world", [2, 3])
def test_nothing_and_scalars(world):
    on_process_group(world, _nothing)


# --- several at once -------------------------------------------------------------------------------------------


def _coalesced():
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in [10, 200_000]:
        tensors = [values(count + i, rank + i) for i in range(3)]
        dist.all_reduce_coalesced(tensors)
        for i, x in enumerate(tensors):
            same(x, sum(values(count + i, r + i) for r in range(world)))
    lists = [[torch.empty(4), torch.empty(2)] for _ in range(world)]
    dist.all_gather_coalesced(lists, [values(4, rank), values(2, rank)])
    for r, (a, b) in enumerate(lists):
        same(a, values(4, r))
        same(b, values(2, r))
    x, y = values(5, rank), values(6, rank)
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    same(x, total(5, world, torch.float32))
    same(y, total(6, world, torch.float32))
    outs = [torch.empty(5 * world), torch.empty(6 * world)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, given in zip(outs, (values(5, rank), values(6, rank)), strict=True):
            dist.all_gather_into_tensor(out, given)
    manager.wait()
    same(outs[1], torch.cat([values(6, r) for r in range(world)]))
    outs = [torch.empty(5), torch.empty(6)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for out in outs:
            dist.reduce_scatter_tensor(out, values(len(out) * world, rank))
    manager.wait()
    same(outs[0], total(5 * world, world, torch.float32)[rank * 5 :][:5])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("world", [2, 3])
def test_coalesced(world):
    on_process_group(world, _coalesced)


def _several():
    """Several tensors of one rank, as Gloo's calls take them; also columns, whose memory is not dense."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))

    def own(r=rank, n=2):
        return [values(10, n * r + i, torch.int32).reshape(5, 2)[:, 1] for i in range(n)]

    everyone = [x for r in range(world) for x in own(r)]
    for op, reduced in (
        (dist.ReduceOp.SUM, torch.stack(everyone).sum(0, dtype=torch.int32)),
        (dist.ReduceOp.PRODUCT, torch.stack(everyone).prod(0, dtype=torch.int32)),
        (dist.ReduceOp.MIN, torch.stack(everyone).amin(0)),
        (dist.ReduceOp.MAX, torch.stack(everyone).amax(0)),
        (dist.ReduceOp.BAND, functools.reduce(torch.bitwise_and, everyone)),
        (dist.ReduceOp.BOR, functools.reduce(torch.bitwise_or, everyone)),
        (dist.ReduceOp.BXOR, functools.reduce(torch.bitwise_xor, everyone)),
    ):
        options = dist.AllreduceOptions()
        options.reduceOp = op
        xs = own()
        group.allreduce(xs, options).wait()
        for x in xs:
            same(x, reduced)
    for root in range(world):
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 1
        xs = own()
        group.broadcast(xs, options).wait()
        for x in xs:
            same(x, own(root)[1])
    lists = [[torch.zeros(5, dtype=torch.int32) for _ in everyone] for _ in range(2)]
    group.allgather(lists, own()).wait()
    for gathered in lists:
        for x, y in zip(gathered, everyone, strict=True):
            same(x, y)
    x, longer, other = torch.zeros(2), torch.zeros(3), torch.zeros(2, dtype=torch.int32)
    for call in (group.allreduce, group.broadcast):
        for wrong, told in (([], "at least one"), ([x, longer], "one size"), ([x, other], "one dtype")):
            options = dist.AllreduceOptions() if call == group.allreduce else dist.BroadcastOptions()
            with pytest.raises(RuntimeError, match=told):
                call(wrong, options)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    averages = [x.double() for x in own()]
    group.allreduce(averages, options).wait()
    for average in averages:
        torch.testing.assert_close(average, torch.stack(everyone).double().sum(0) / world)
    options.reduceOp = dist._make_nccl_premul_sum(2.0)
    with pytest.raises(RuntimeError, match="does not serve this reduce op"):
        group.allreduce([x, x.clone()], options)
    for call, options, tensors in (
        (group.broadcast, dist.BroadcastOptions(), [x, x.clone()]),
        (group.reduce, dist.ReduceOptions(), [x]),
    ):
        options.rootTensor = len(tensors)
        with pytest.raises(RuntimeError, match="no root tensor"):
            call(tensors, options)
    for wrong in ([[x] * 2 * world], [[x] * 2 * world, [x] * world], [[x] * 2 * world, [longer] * 2 * world]):
        with pytest.raises(RuntimeError, match="all_gather takes"):
            group.allgather(wrong, [x, x])


@pytest.mark.parametrize("world", [1, 3])
def test_several_tensors_of_one_rank(world):
    on_process_group(world, _several)


def _objects():
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    out = [None] * world
    dist.all_gather_object(out, mine)
    assert [one["rank"] for one in out] == list(range(world))
    assert len(out[-1]["text"]) == 1000 * (world - 1)
    thing = [mine if rank == 0 else None]
    dist.broadcast_object_list(thing, 0)
    assert thing[0]["rank"] == 0
    out = [None] * world if rank == world - 1 else None
    dist.gather_object(mine, out, world - 1)
    assert rank != world - 1 or [one["rank"] for one in out] == list(range(world))
    got = [None]
    dist.scatter_object_list(got, [str(r) for r in range(world)] if rank == 0 else None, 0)
    assert got == [str(rank)]


@pytest.mark.parametrize("world", [2, 3])
def test_objects(world):
    on_process_group(world, _objects)


# --- messages --------------------------------------------------------------------------------------------------


def _messages():
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in [1, 500_000]:
        right, left = (rank + 1) % world, (rank - 1) % world
        out = torch.empty(count)
        works = [dist.isend(values(count, rank), right), dist.irecv(out, left)]
        for work in works:
            work.wait()
        same(out, values(count, left))
    # Tags say which message is meant, whatever the order.
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.tensor([float(tag)]), 1, tag=tag)
    elif rank == 1:
        for tag in (2, 1):
            x = torch.zeros(1)
            dist.recv(x, 0, tag=tag)
            assert x.item() == tag
    # From anybody.
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            x = torch.zeros(1)
            source = dist.recv(x, tag=7)
            assert x.item() == source
            seen.add(source)
        assert seen == set(range(1, world))
    else:
        dist.send(torch.tensor([float(rank)]), 0, tag=7)
    peers = [r for r in range(world) if r != rank]
    outs = {r: torch.empty(3) for r in peers}
    ops = [dist.P2POp(dist.isend, values(3, rank), r) for r in peers]
    ops += [dist.P2POp(dist.irecv, outs[r], r) for r in peers]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for r in peers:
        same(outs[r], values(3, r))
    columns = torch.zeros(3, 4)
    if rank == 0:
        dist.send(values(12, 5).view(4, 3).t(), 1)
    elif rank == 1:
        dist.recv(columns.t(), 0)
        same(columns.t().reshape(-1), values(12, 5).view(4, 3).t().reshape(-1))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_messages(world):
    on_process_group(world, _messages)
