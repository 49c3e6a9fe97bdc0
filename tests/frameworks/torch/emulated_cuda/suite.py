"""CUDA tensors without a card: torch's device "cuda" is the emulated GPU, whose streams are threads."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

import ringreduce.backend
from tests.frameworks.torch.gpu_groups import MODULE, on_emulated_gpu

pytestmark = [
    pytest.mark.skipif(not MODULE.exists(), reason="not built: make emulated"),
    pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch has a CUDA of its own"),
]

WORLDS = [2, 3]


def values(rank, count=1000, first=0):
    """Small whole numbers, other ones on every rank."""
    return ((torch.arange(first, first + count) * 7 + rank * 3) % 5 + 1).float()


def on_gpu(*tensors):
    return [x.to("cuda:0") for x in tensors]


def total(count=1000):
    return sum(values(rank, count) for rank in range(dist.get_world_size()))


def same(x, y):
    assert x.is_cuda
    assert torch.equal(x.cpu(), y), (x.cpu(), y)


# --- every collective ------------------------------------------------------------------------------------------


def _reductions():
    rank = dist.get_rank()
    for count in [0, 1, 1000, 70_000]:
        (x,) = on_gpu(values(rank, count))
        dist.all_reduce(x)
        same(x, total(count))
    x = on_gpu(values(rank, 100).view(10, 10))[0].t()  # not contiguous
    dist.all_reduce(x)
    same(x, total(100).view(10, 10).t())
    (x,) = on_gpu(values(rank))
    dist.reduce(x, 1)
    if rank == 1:
        same(x, total())
    xs = on_gpu(values(rank, 10), values(rank, 30))
    dist.all_reduce_coalesced(xs)
    same(xs[0], total(10))
    same(xs[1], total(30))


def _one_to_all_and_back():
    rank, world = dist.get_rank(), dist.get_world_size()
    (x,) = on_gpu(values(rank))
    dist.broadcast(x, 1)
    same(x, values(1))
    parts = on_gpu(*(values(r) for r in range(world)))
    out = torch.empty(1000, device="cuda:0")
    dist.scatter(out, parts if rank == 1 else None, src=1)
    same(out, values(rank))
    (x,) = on_gpu(values(rank))
    outs = [torch.empty(1000, device="cuda:0") for _ in range(world)]
    dist.gather(x, outs if rank == 1 else None, dst=1)
    for r in range(world if rank == 1 else 0):
        same(outs[r], values(r))


def _gathered_and_scattered():
    rank, world = dist.get_rank(), dist.get_world_size()
    (x,) = on_gpu(values(rank))
    outs = [torch.empty(1000, device="cuda:0") for _ in range(world)]
    dist.all_gather(outs, x)
    for r in range(world):
        same(outs[r], values(r))
    out = torch.empty(world * 1000, device="cuda:0")
    dist.all_gather_into_tensor(out, x)
    same(out, torch.cat([values(r) for r in range(world)]))
    uneven = [torch.empty(10 + r, device="cuda:0") for r in range(world)]
    dist.all_gather(uneven, on_gpu(values(rank, 10 + rank))[0])
    for r in range(world):
        same(uneven[r], values(r, 10 + r))
    (given,) = on_gpu(values(rank, world * 1000))
    out = torch.empty(1000, device="cuda:0")
    dist.reduce_scatter_tensor(out, given)
    mine = total(world * 1000)[rank * 1000 :][:1000]
    same(out, mine)
    out = torch.empty(1000, device="cuda:0")
    dist.reduce_scatter(out, [part.clone() for part in given.chunk(world)])
    same(out, mine)


def _all_to_all():
    rank, world = dist.get_rank(), dist.get_world_size()
    (given,) = on_gpu(values(rank, world * 10))
    out = torch.empty(world * 10, device="cuda:0")
    dist.all_to_all_single(out, given)
    same(out, torch.cat([values(r, 10, first=rank * 10) for r in range(world)]))
    sizes = [r + 1 for r in range(world)]  # what each rank gets from everybody
    given = on_gpu(*(values(rank, size, first=7 * r) for r, size in enumerate(sizes)))
    outs = [torch.empty(rank + 1, device="cuda:0") for _ in range(world)]
    dist.all_to_all(outs, given)
    for r in range(world):
        same(outs[r], values(r, rank + 1, first=7 * rank))
    out = torch.empty(world * (rank + 1), device="cuda:0")
    dist.all_to_all_single(out, torch.cat(given), [rank + 1] * world, sizes)
    same(out, torch.cat([values(r, rank + 1, first=7 * rank) for r in range(world)]))


def _every_collective(gpu):
    _reductions()
    _one_to_all_and_back()
    _gathered_and_scattered()
    _all_to_all()
    x = values(dist.get_rank())
    dist.all_reduce(x)  # the same group serves the CPU
    assert torch.equal(x, total())
    dist.barrier()
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == list(range(dist.get_world_size()))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("backend", ["ringreduce", "cpu:ringreduce,cuda:ringreduce"])
def test_every_collective(world, backend):
    on_emulated_gpu(world, _every_collective, backend=backend)


@pytest.mark.parametrize("hosts", ["ab", "aabb"])
def test_ranks_of_several_hosts(hosts, monkeypatch):
    """Where NCCL is not installed."""
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", "/nowhere")
    on_emulated_gpu(len(hosts), _every_collective, hosts=hosts)


# --- order -----------------------------------------------------------------------------------------------------


def _met():
    """Ranks that have called something together need not wait for each other's host any more."""
    dist.all_reduce(torch.ones(1, device="cuda:0"))
    dist.barrier()


def _nothing_waits(gpu):
    """Rank 1 calls only when rank 0's host has gone on, and has put what uses the result behind it."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    _met()
    x, y, seen = on_gpu(values(rank), torch.full((1000,), -1.0), torch.zeros(1000))
    if rank > 0:
        store.get("gone on")
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        other = gpu.new_stream()
        before = gpu.use_stream(other)
        seen.copy_(y)  # behind nothing
        assert (seen.cpu() == -1).all()
        gpu.use_stream(before)
        work.wait()
        y.copy_(x)
        assert not work.is_completed()
        store.set("gone on", "yes")
    else:
        work.wait()
        y.copy_(x)
    same(y, total())
    assert work.is_completed()
    assert work.result()[0] is not None


def _input_is_waited_for(gpu):
    """What the current stream has still to write is what is sent; another stream knows nothing of it."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    _met()
    held, x, given = on_gpu(torch.zeros(1000), torch.zeros(1000), values(rank))
    gpu.use_stream(gpu.new_stream())
    if rank > 0:
        store.get("called")
    dist.all_reduce(held)  # rank 0's stream is held until rank 1 has come
    x.copy_(given)
    dist.all_reduce(x)
    if rank == 0:
        store.set("called", "yes")
    same(x, total())


def _wait_with_timeout(gpu):
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    _met()
    (x,) = on_gpu(values(rank))
    if rank > 0:
        store.get("timed out")
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="gave up after 50 ms"):
            work.wait(timedelta(milliseconds=50))
        store.set("timed out", "yes")
    work.wait(timedelta(seconds=20))
    assert work.is_completed()
    same(x, total())


def _futures(gpu):
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    _met()
    x, y = on_gpu(values(rank), torch.zeros(1000))
    if rank > 0:
        store.get("asked")
    work = dist.all_reduce(x, async_op=True)
    streams = []

    def then(future):
        streams.append(gpu.current_stream())
        y.copy_(future.value()[0])  # on a stream that waits for the result
        return y

    future = work.get_future().then(then)
    assert streams and streams[0] != gpu.current_stream()
    if rank == 0:
        store.set("asked", "yes")
    same(future.wait(), total())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("what", [_nothing_waits, _input_is_waited_for, _wait_with_timeout, _futures])
def test_order(world, what):
    on_emulated_gpu(world, what)


def _order_of_hosts_and_gpus(gpu):
    """Calls on the CPU that are under way do not change places with those on the GPU."""
    rank = dist.get_rank()
    for _ in range(20):
        (x,) = on_gpu(values(rank))
        on_cpu = values(rank, 100_000)
        work = dist.all_reduce(on_cpu, async_op=True)
        if rank == 0:
            time.sleep(0.001)
        dist.all_reduce(x)
        work.wait()
        assert torch.equal(on_cpu, total(100_000))
        same(x, total())


def test_calls_on_both_devices_keep_their_order():
    on_emulated_gpu(3, _order_of_hosts_and_gpus)


# --- graphs ----------------------------------------------------------------------------------------------------


def _graph(gpu):
    """Captured once, with copies before and behind, and replayed with other values."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, given, out = on_gpu(torch.zeros(1000), torch.zeros(1000), torch.zeros(1000))
    strided = torch.empty(1000, world, device="cuda:0").t()
    dist.all_reduce(x)  # the ranks meet, which cannot be captured
    dist.all_gather_into_tensor(strided, x)
    strided.cpu()  # nothing of theirs may run beside the graph
    gpu.use_stream(gpu.new_stream())

    def step():
        x.copy_(given)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.all_gather_into_tensor(strided, given)
        out.copy_(x)

    graph = gpu.captured(step)
    for first in range(3):
        given.copy_(values(rank, first=first))
        gpu.replay(graph)
        same(out, sum(values(r, first=first) for r in range(world)))
        same(strided, torch.stack([values(r, first=first) for r in range(world)]))


@pytest.mark.parametrize("world", WORLDS)
def test_graphs(world):
    on_emulated_gpu(world, _graph)


# --- messages --------------------------------------------------------------------------------------------------


def _messages(gpu):
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = on_gpu(values(rank), torch.zeros(1000))
    after, before = (rank + 1) % world, (rank - 1) % world
    received = dist.irecv(y, before)
    dist.send(x, after)
    received.wait()
    same(y, values(before))
    strided = torch.zeros(4, 5, device="cuda:0").t()
    ops = [
        dist.P2POp(dist.isend, on_gpu(values(rank, 20).view(5, 4))[0], after),
        dist.P2POp(dist.irecv, strided, before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(strided, values(before, 20).view(5, 4))
    if rank == 0:
        for _ in range(world - 1):
            source = dist.recv(y)
            same(y, values(source))
    else:
        dist.send(x, 0)
    received = dist.irecv(y, before)
    dist.isend(x, after).wait()
    while not received.is_completed():
        time.sleep(0.001)
    same(y, values(before))


@pytest.mark.parametrize("world", WORLDS)
def test_messages(world):
    on_emulated_gpu(world, _messages)


# --- groups of a device that is named at the start ---------------------------------------------------------------


def _bind(folder, **options):
    """Makes the process group anew, bound to the GPU. This torch has no accelerator of its own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    torch.accelerator.device_count = lambda: 1
    dist.init_process_group(
        "ringreduce", init_method=f"file://{folder}/bound", rank=rank, world_size=world,
        device_id=torch.device("cuda:0"), **options,
    )  # fmt: skip


def _bound(gpu, folder):
    rank = dist.get_rank()
    _bind(folder)
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert dist.group.WORLD.bound_device_id == torch.device("cuda:0")
    pair = dist.new_group([0, 1])  # rank 2 is outside
    assert (pair == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 2)
    (x,) = on_gpu(values(rank))
    if rank != 2:
        dist.all_reduce(x, group=pair)
        same(x, values(0) + values(1))

    count = backend.comm_split_count()
    ends = dist.split_group(split_ranks=[[0, 2]], timeout=timedelta(seconds=20))
    assert (ends is None) == (rank == 1)
    if ends is not None:
        assert backend.comm_split_count() == count + 1
        (x,) = on_gpu(values(rank))
        dist.all_reduce(x, group=ends)
        same(x, values(0) + values(2))
        options = ends._get_backend(torch.device("cuda")).options
        assert options._timeout == timedelta(seconds=20)
        assert options.reproducible is None
    (x,) = on_gpu(values(rank))
    dist.all_reduce(x)
    same(x, total())


def test_groups_of_a_bound_device(tmp_path):
    on_emulated_gpu(3, _bound, str(tmp_path))


def _messages_by_kernels(gpu, folder):
    _bind(folder)
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    large = 200_000  # more than leaves before it is received
    (x,), y = on_gpu(values(rank, large)), torch.zeros(large, device="cuda:0")
    sent, received = dist.isend(x, after), dist.irecv(y, before)
    received.wait()
    sent.wait()
    same(y, values(before, large))
    y.zero_()
    strided = torch.zeros(4, 5, device="cuda:0").t()
    ops = [
        dist.P2POp(dist.isend, on_gpu(values(rank, 20).view(5, 4))[0], after),
        dist.P2POp(dist.isend, x, after),
        dist.P2POp(dist.irecv, strided, before),
        dist.P2POp(dist.irecv, y, before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(strided, values(before, 20).view(5, 4))
    same(y, values(before, large))
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(y.zero_(), 0)
        same(y, values(0, large))
    with pytest.raises(
        RuntimeError, match="recv from any rank takes a CUDA tensor only with a tag other than 0"
    ):
        dist.recv(y)
    received = dist.irecv(y, tag=3)  # through CPU memory
    dist.send(x, after, tag=3)
    received.wait()
    same(y, values(before, large))
    (ends,) = [dist.split_group(split_ranks=[[0, world - 1]])]
    if ends is not None:
        other = world - 1 - rank
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, other, ends), dist.P2POp(dist.irecv, y.zero_(), other, ends)]
        ):
            work.wait()
        same(y, values(other, large))


@pytest.mark.parametrize("world", WORLDS)
def test_messages_by_kernels(world, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "200")  # of one GPU, for three processes
    on_emulated_gpu(world, _messages_by_kernels, str(tmp_path))


# --- memory, and what is refused -------------------------------------------------------------------------------


def _records(gpu):
    world = dist.get_world_size()
    x, out = on_gpu(values(dist.get_rank()), torch.empty(world * 1000))
    gpu.take_records()
    dist.all_gather_into_tensor(out, x, async_op=True).wait()
    records = gpu.take_records()
    assert {x.data_ptr(), out.data_ptr()} <= {address for address, _ in records}
    assert all(stream != gpu.current_stream() for _, stream in records)
    strided = torch.empty(1000, world, device="cuda:0").t()
    dist.all_gather_into_tensor(strided, x, async_op=True).wait()  # through memory that is gone by now
    assert len(gpu.take_records()) >= 3
    dist.all_reduce(x)  # the current stream waits for it, and so does what may get the memory
    assert not gpu.take_records()


def test_memory_is_kept_until_the_stream_is_through():
    on_emulated_gpu(2, _records)


def _copy_engine(gpu):
    """A gather as FSDP's, of a block that lies in the output."""
    emulated = ctypes.CDLL(os.environ["RINGREDUCE_CUDA_LIBRARY"])
    group = dist.new_group(pg_options=ringreduce.backend.Options(max_blocks=0))
    backend = group._get_backend(torch.device("cuda"))
    rank, world = dist.get_rank(), dist.get_world_size()
    (whole,) = on_gpu(torch.zeros(world * 20_000))
    own = whole.narrow(0, rank * 20_000, 20_000)
    own.fill_(rank + 1)
    for is_registered in (False, True):
        if is_registered:
            backend.register(whole)
        dist.barrier()
        emulated.ringreduce_emulated_largest_kernel(0)
        dist.all_gather_into_tensor(whole, own, group=group)
        same(whole, torch.arange(1, world + 1.0).repeat_interleave(20_000))
        dist.barrier()
        assert (emulated.ringreduce_emulated_largest_kernel(0) == 0) == is_registered
    backend.deregister(whole)
    with pytest.raises(RuntimeError, match="x is not registered"):
        backend.deregister(whole)
    with pytest.raises(RuntimeError, match=r"register\(\) takes a contiguous tensor on a GPU"):
        backend.register(torch.zeros(3))


def test_copies_of_registered_tensors_take_no_blocks():
    on_emulated_gpu(2, _copy_engine)


def _options(gpu):
    emulated = ctypes.CDLL(os.environ["RINGREDUCE_CUDA_LIBRARY"])

    def priority(group):
        (x,) = on_gpu(values(dist.get_rank()))
        gpu.take_records()
        dist.all_reduce(x, group=group, async_op=True).wait()
        same(x, total())
        (stream,) = {stream for _, stream in gpu.take_records()}
        return emulated.ringreduce_emulated_priority(ctypes.c_void_p(stream))

    options = ringreduce.backend.Options(max_blocks=3, is_high_priority_stream=True)
    unset = -(2**31)
    configs = [SimpleNamespace(min_ctas=lo, max_ctas=hi) for lo, hi in ((2, 4), (2, unset), (unset, unset))]
    configs.append(SimpleNamespace(min_ctas=2, max_ctas=4, cta_policy=2))
    # As ProcessGroupNCCL.Options.
    theirs = [SimpleNamespace(is_high_priority_stream=True, config=config) for config in configs]
    groups = [None, *(dist.new_group(pg_options=one) for one in (options, *theirs))]
    assert [priority(group) for group in groups] == [0, -1, -1, -1, -1, -1]
    kept = [group._get_backend(torch.device("cuda")).options for group in groups[1:]]
    assert [one.max_blocks for one in kept] == [3, 4, 2, None, 0]
    assert all(one.is_high_priority_stream for one in kept)
    for name, value, error in (("max_blocks", 65, ValueError), ("is_high_priority_stream", 1, TypeError)):
        with pytest.raises(error, match=f"{name} must be"):
            dist.new_group(pg_options=SimpleNamespace(**{name: value}))


def test_options_of_process_groups():
    on_emulated_gpu(2, _options)


def _refusals(gpu):
    world = dist.get_world_size()
    (x,) = on_gpu(values(0))
    with pytest.raises(RuntimeError, match="one device, not on both cpu and cuda:0"):
        dist.all_gather_into_tensor(torch.empty(world * 1000), x)
    with pytest.raises(RuntimeError, match="one device, not on both cuda:0 and cpu"):
        dist.all_gather([torch.empty(1000, device="cuda:0"), *[torch.empty(1000)] * (world - 1)], x)
    with pytest.raises(RuntimeError, match="one device, not on both cuda:0 and cuda:1"):
        dist.all_reduce_coalesced([x, torch.empty(3, device="cuda:1")])
    with pytest.raises(RuntimeError, match="not one on meta"):
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda")).allreduce(
            [torch.empty(3, device="meta")]
        )
    dist.all_reduce(x)
    same(x, values(0) * world)


def test_mixed_devices_are_refused():
    on_emulated_gpu(2, _refusals)
