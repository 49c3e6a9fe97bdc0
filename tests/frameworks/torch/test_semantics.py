"""Works, futures, groups, memory, modes: what c10d promises beside the operations themselves."""

from __future__ import annotations

import copy
import importlib.util
import os
import threading
import time
from datetime import timedelta

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.groups import on_process_group

CPU = torch.device("cpu")


def world_backend():
    return dist.group.WORLD._get_backend(CPU)


# --- works and futures -----------------------------------------------------------------------------------------


def _works():
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(0.3)
    x = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        assert not work.is_completed()
    assert work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is not None and work.result()[0].tolist() == [3.0] * 4
    future = work.get_future()
    assert future.done() and future.value()[0].tolist() == [3.0] * 4
    assert work.get_future_result().wait() == 0
    blocking = world_backend().allreduce([x])
    blocking.wait()
    assert x.tolist() == [6.0] * 4


def test_works():
    on_process_group(2, _works)


def _callbacks():
    x = torch.ones(3)
    seen = []

    def halve(future):
        seen.append(threading.current_thread() is threading.main_thread())
        return future.value()[0] / 2

    # A callback may itself wait for collectives, however deep.
    def again(future):
        inner = dist.all_reduce(future.value()[0].clone(), async_op=True).get_future()
        return inner.then(
            lambda f: dist.all_reduce(f.value()[0], async_op=True).get_future().wait()[0]
        ).wait()

    first = dist.all_reduce(x, async_op=True).get_future().then(halve).wait()
    second = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(again).wait()
    assert first.tolist() == [1.0] * 3 and second.tolist() == [8.0] * 2
    futures = [dist.all_reduce(torch.ones(1) * i, async_op=True).get_future() for i in range(20)]
    results = torch.futures.wait_all(futures)
    assert [r[0].item() for r in results] == [2.0 * i for i in range(20)]

    def fail(future):
        raise ValueError("no")

    with pytest.raises((ValueError, RuntimeError), match="no"):
        dist.all_reduce(x, async_op=True).get_future().then(fail).wait()


def test_callbacks_may_wait_for_collectives():
    on_process_group(2, _callbacks)


def _overlap():
    """While this thread computes, collectives go on."""
    x = torch.ones(4 << 20)
    dist.barrier()
    work = dist.all_reduce(x, async_op=True)
    deadline = time.monotonic() + 10
    while not work.is_completed() and time.monotonic() < deadline:
        torch.randn(100).sum()
    assert work.is_completed()
    works = [dist.all_reduce(torch.ones(1000) * i, async_op=True) for i in range(50)]
    dist.all_reduce(x)  # behind them all
    assert all(work.is_completed() for work in works)


def test_asynchronous_operations_go_on_by_themselves():
    on_process_group(2, _overlap)


def _threads():
    groups = [dist.new_group() for _ in range(4)]
    failures = []

    def run(group, i):
        try:
            for n in range(50):
                x = torch.full((n * 10 + 1,), float(i))
                dist.all_reduce(x, group=group)
                assert x[0].item() == i * dist.get_world_size()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(groups, range(4), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_groups_in_threads():
    on_process_group(3, _threads)


# --- groups ----------------------------------------------------------------------------------------------------


def _groups():
    rank, world = dist.get_rank(), dist.get_world_size()
    evens = dist.new_group(list(range(0, world, 2)))
    x = torch.ones(1)
    if rank % 2 == 0:
        dist.all_reduce(x, group=evens)
        assert x.item() == (world + 1) // 2
        y = torch.tensor([float(rank)])
        dist.broadcast(y, src=2, group=evens)
        assert y.item() == 2
    pairs, _ = dist.new_subgroups(2) if world % 2 == 0 else (dist.group.WORLD, None)
    dist.all_reduce(x, group=pairs)
    dist.barrier()
    alone = dist.new_group([rank], use_local_synchronization=True)
    z = torch.tensor([5.0])
    dist.all_reduce(z, group=alone)
    dist.all_gather_into_tensor(torch.empty(1), z, group=alone)
    assert z.item() == 5.0
    for _ in range(3):  # groups come and go
        passing = dist.new_group()
        dist.all_reduce(x, group=passing)
        dist.destroy_process_group(passing)


@pytest.mark.parametrize("world", [3, 4])
def test_groups(world):
    on_process_group(world, _groups)


def _split():
    rank = dist.get_rank()
    half = dist.group.WORLD.split_group([0, 2] if rank % 2 == 0 else [1, 3], timeout=timedelta(seconds=20))
    x = torch.tensor([float(rank)])
    half.allreduce([x]).wait()
    assert x.item() == (2.0 if rank % 2 == 0 else 4.0)
    assert half.size() == 2 and half.rank() == rank // 2
    backend = world_backend()
    assert backend.supports_splitting and backend.supports_shrinking
    if rank != 1:
        smaller = backend.shrink([1], 0, None)
        y = torch.tensor([1.0])
        smaller.allreduce([y]).wait()
        assert y.item() == 3.0 and smaller.size() == 3
        smaller.shutdown()
    dist.barrier()


def test_split_and_shrink():
    on_process_group(4, _split)


def _options():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    options = backend.options
    assert options.backend == "ringreduce"
    assert options._timeout == timedelta(seconds=30)
    other = copy.deepcopy(options)
    other._timeout = timedelta(seconds=5)
    other.reproducible = True
    assert options.reproducible is None
    assert options._timeout == timedelta(seconds=30)
    backend._set_default_timeout(timedelta(seconds=7))
    assert backend.options._timeout == timedelta(seconds=7)
    part = dist.group.WORLD.split_group([0, 1], opts=other)
    if part is not None:
        assert part._get_backend(torch.device("cpu")).options.reproducible


def test_options():
    on_process_group(3, _options)


def _reinitialised(folder):
    """The same store may serve one group after the other."""
    store = dist.FileStore(f"{folder}/again", dist.get_world_size())
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for n in range(3):
        dist.init_process_group(
            "ringreduce", store=dist.PrefixStore("same", store), rank=rank, world_size=world
        )
        x = torch.ones(1) * n
        dist.all_reduce(x)
        assert x.item() == n * world
        if n < 2:
            dist.destroy_process_group()
    until = time.monotonic() + 20  # the last rank to come so far clears it
    while ours := [key for key in store.list_keys() if "ringreduce/" in key]:
        assert time.monotonic() < until, ours
        time.sleep(0.01)


def test_a_store_serves_again(tmp_path):
    on_process_group(3, _reinitialised, str(tmp_path))


def _abort():
    backend = world_backend()
    if dist.get_rank() == 0:
        time.sleep(0.2)
        backend.abort()
        with pytest.raises(RuntimeError, match="closed"):
            dist.all_reduce(torch.ones(1))
    else:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="rank 0"):
            dist.all_reduce(torch.ones(1))
        assert time.monotonic() - began < 5


def test_abort_ends_everybodys_waits():
    on_process_group(3, _abort)


# --- modes -----------------------------------------------------------------------------------------------------


def _monitored(all_ranks):
    rank, group = dist.get_rank(), dist.group.WORLD
    for n in range(3):
        group.monitored_barrier(timeout=timedelta(seconds=20))
        if rank == n:
            time.sleep(0.05)
    short, named = timedelta(milliseconds=400), "Ranks 2" if all_ranks else "Rank 2"  # as Gloo says
    if rank == 0:
        with pytest.raises(RuntimeError, match=f"{named} failed to pass monitoredBarrier in 400 ms"):
            group.monitored_barrier(timeout=short, wait_all_ranks=all_ranks)
    elif rank == 1:
        with pytest.raises(
            RuntimeError, match=f"Rank 1 successfully reached.*check rank 0 logs.*{named} failed"
        ):
            group.monitored_barrier(timeout=short, wait_all_ranks=all_ranks)
    else:
        time.sleep(1)


@pytest.mark.parametrize("all_ranks", [False, True])
def test_monitored_barrier_names_who_is_missing(all_ranks):
    on_process_group(3, _monitored, all_ranks)


def _memory():
    backend = world_backend()
    assert backend.supports_tensor_alloc(CPU)
    x = backend.allocate_tensor(1 << 18, dtype=torch.bfloat16, device=CPU)
    assert x.shape == (1 << 18,) and x.dtype == torch.bfloat16 and not x.any()
    x.fill_(dist.get_rank() + 1)
    dist.all_reduce(x)
    assert (x == 3).all()
    view = x[10:]
    del x
    assert (view == 3).all()
    assert backend.allocate_tensor(0, dtype=torch.float32, device=CPU).numel() == 0


def test_memory_that_ranks_share():
    on_process_group(2, _memory)


def _reproducible():
    import ringreduce.backend

    rank, world = dist.get_rank(), dist.get_world_size()
    options = ringreduce.backend.Options(reproducible=True)
    group = dist.new_group(pg_options=options)
    torch.manual_seed(7)
    everybody = torch.randn(world, 100_000) * torch.logspace(-3, 3, world)[:, None]
    chain = everybody[0].clone()
    for row in everybody[1:]:
        chain += row
    for start, stop in [(0, 100_000), (5, 6), (17, 1000), (99, 50_000)]:
        x = everybody[rank, start:stop].clone()
        dist.all_reduce(x, group=group)
        assert torch.equal(x, chain[start:stop])


def test_reproducible_by_option():
    on_process_group(4, _reproducible)


def _same_bits():
    rank, world = dist.get_rank(), dist.get_world_size()
    found = []
    for count in [3, 1000, 300_000]:
        torch.manual_seed(rank)
        given = torch.randn(count)
        runs = []
        for _ in range(2):
            x = given.clone()
            dist.all_reduce(x)
            runs.append(x)
        assert torch.equal(runs[0], runs[1])
        out = [torch.empty(count) for _ in range(world)]
        dist.all_gather(out, runs[0])
        assert all(torch.equal(out[0], other) for other in out)
        found.append(runs[0].sum().item())
    return found


def test_same_bits_on_every_rank_and_in_every_run():
    first, second = (on_process_group(3, _same_bits) for _ in range(2))
    assert first == second and first[0] == first[1] == first[2]


def _detail():
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3
    shape = (3,) if dist.get_rank() == 0 else (4,)
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(shape))


def _in_detail():
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "ringreduce", store=dist.PrefixStore("detail", store), rank=rank, world_size=world
    )
    _detail()


def test_debug_mode_detail():
    on_process_group(2, _in_detail)


def _config():
    x = torch.ones(2)
    dist.all_reduce(x)
    assert dist.get_backend_config() == "cpu:ringreduce,cuda:gloo"
    return x.tolist()


def test_a_backend_for_each_device():
    assert on_process_group(2, _config, backend="cpu:ringreduce,cuda:gloo") == [[2.0, 2.0]] * 2


def _timeout():
    dist.group.WORLD.set_timeout(timedelta(milliseconds=300))
    if dist.get_rank() == 0:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
            dist.all_reduce(torch.ones(1))
        assert 0.25 < time.monotonic() - began < 3
    else:
        time.sleep(1)


def test_the_groups_timeout_can_be_changed():
    on_process_group(2, _timeout)


# --- what stands on it -----------------------------------------------------------------------------------------


def _hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    rank = dist.get_rank()
    hooks = {
        "none": None,
        "fp16": (None, default_hooks.fp16_compress_hook),
        "powerSGD": (
            powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2),
            powerSGD_hook.powerSGD_hook,
        ),
    }
    for hook in hooks.values():
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)),
            bucket_cap_mb=0.01,
        )
        if hook:
            model.register_comm_hook(*hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        given, wanted = torch.randn(16, 64), torch.randn(16, 8)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(given), wanted)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        for parameter in model.parameters():
            out = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
            dist.all_gather(out, parameter.detach())
            assert all(torch.equal(out[0], other) for other in out)


def test_ddps_communication_hooks():
    on_process_group(2, _hooks)


def _differentiable():
    torch.manual_seed(0)
    given = torch.randn(8, 4)
    import torch.distributed.nn.functional as differentiable

    rank = dist.get_rank()
    part = given[rank * 4 :][:4].clone().requires_grad_()
    summed = differentiable.all_reduce(part.sum())
    summed.backward()
    torch.testing.assert_close(summed.detach(), given.sum())
    assert (part.grad == 2).all()
    gathered = differentiable.all_gather(part)
    assert torch.equal(torch.cat(gathered).detach(), given)


def test_differentiable_collectives():
    on_process_group(2, _differentiable)
