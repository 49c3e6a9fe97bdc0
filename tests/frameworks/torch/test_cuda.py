"""CUDA tensors on a card. What is asked of the order of streams is in emulated_cuda/suite.py."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.emulated_cuda import suite as emulated
from tests.frameworks.torch.groups import on_process_group
from tests.gpu.limits import MOST_PROCESSES
from tests.gpu.probe import HAS_CARD, WHY_NOT

pytestmark = [
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no CUDA"),
    pytest.mark.skipif(not HAS_CARD, reason=WHY_NOT),
]

WORLDS = range(2, MOST_PROCESSES + 1)  # processes that share the first GPU


@pytest.mark.parametrize("world", WORLDS)
def test_every_collective(world):
    on_process_group(world, emulated._every_collective, None)


@pytest.mark.parametrize("world", WORLDS)
def test_messages(world):
    on_process_group(world, emulated._messages, None)


def test_calls_on_both_devices_keep_their_order():
    on_process_group(MOST_PROCESSES, emulated._order_of_hosts_and_gpus, None)


def _own_memory_is_kept():
    """Temporaries of the caller's that are freed while the group's stream has them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    works = []
    for n in range(50):
        x = torch.full((100_000,), float(rank + n), device="cuda:0")
        works.append((n, dist.all_reduce(x.t() if n % 2 else x, async_op=True)))
        del x
        torch.full((100_000,), -1.0, device="cuda:0")
    for n, work in works:
        work.wait()
        assert (work.result()[0] == sum(range(world)) + n * world).all()


def test_memory_is_kept_until_the_stream_is_through():
    on_process_group(2, _own_memory_is_kept)


def _graph():
    rank, world = dist.get_rank(), dist.get_world_size()
    given, x = torch.zeros(1000, device="cuda:0"), torch.zeros(1000, device="cuda:0")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(given)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x.add_(1)
    for first in range(3):
        given.copy_(emulated.values(rank, first=first))
        graph.replay()
        wanted = sum(emulated.values(r, first=first) for r in range(world)) + 1
        emulated.same(x, wanted)


@pytest.mark.parametrize("world", WORLDS)
def test_graphs(world):
    on_process_group(world, _graph)


def _trained(wrap):
    """A model's parameters after some steps, each rank with its own samples; alone: with all of them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
    model = torch.nn.Sequential(*layers).double().to("cuda:0")
    samples = torch.randn(5, world, 4, 64, dtype=torch.float64).to("cuda:0")
    used = wrap(model) if wrap else model
    optimizer = torch.optim.SGD(used.parameters(), lr=0.1)
    for step in samples:
        optimizer.zero_grad()
        (used(step[rank]) if wrap else used(step.flatten(0, 1))).square().mean().backward()
        optimizer.step()
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().cpu() for p in used.parameters()]


def _same_as_alone(how):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(0)
    if how == "ddp":
        together = _trained(lambda model: DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=0.01))
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        together = _trained(lambda model: fully_shard(model, mesh=mesh))
    for a, b in zip(together, _trained(None), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_training(how):
    on_process_group(2, _same_as_alone, how)


def _by_graph(wrap, is_captured):
    """A model's parameters after 16 steps. The last ones are a graph's replays; torch wants 11 before DDP's capture,
    and all of DDP on the stream that is captured."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
        used = wrap(torch.nn.Sequential(*layers).double().to("cuda:0"))
        samples = torch.randn(16, world, 4, 64, dtype=torch.float64).to("cuda:0")
        if not is_captured:
            samples = samples.flatten(1, 2).unsqueeze(1)
        optimizer = torch.optim.SGD(used.parameters(), lr=0.1)
        x = torch.empty_like(samples[0, 0])

        def step():
            optimizer.zero_grad(set_to_none=False)
            used(x).square().mean().backward()
            optimizer.step()

        run = step
        for number, sample in enumerate(samples):
            if is_captured and number == 11:
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    step()
                run = graph.replay
            x.copy_(sample[rank if is_captured else 0])
            run()
    stream.synchronize()
    return [p.detach().cpu() for p in used.parameters()]


def _ddp_in_a_graph():
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(0)
    together = _by_graph(
        lambda model: DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=0.01), True
    )
    for a, b in zip(together, _by_graph(lambda model: model, False), strict=True):
        torch.testing.assert_close(a, b)


def test_ddp_in_a_graph():
    on_process_group(2, _ddp_in_a_graph)
