"""What trains on CUDA tensors without a card: hooks, meshes, coalescing, compiled functions.

Hooks give the bits that they give on the CPU."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

import ringreduce
from ringreduce import compression
from tests.frameworks.torch.gpu_groups import MODULE, emulated_cuda, on_emulated_gpu
from tests.training.buckets import METHODS, SHAPES, FakeBucket

pytestmark = [
    pytest.mark.skipif(not MODULE.exists(), reason="not built: make emulated"),
    pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch has a CUDA of its own"),
]


def values(rank, count=1000):
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


# --- compression -----------------------------------------------------------------------------------------------


def _averages(state, device, rank, steps=4):
    """What a hook makes of the same gradients."""
    parameters = [torch.zeros(shape) for shape in SHAPES]
    found = []
    for step in range(steps):
        gradients = [
            values(100 * step + 10 * rank + n, shape.numel()).view(shape).to(device)
            for n, shape in enumerate(parameter.shape for parameter in parameters)
        ]
        found.append(compression.hook(state, FakeBucket(gradients, parameters)).wait().cpu())
    return found


def _same_on_both(group, method, rank):
    results = {}
    for device in ("cpu", "cuda:0"):
        state = METHODS[method](group)
        results[device] = _averages(state, device, rank)
        saved = state.state_dict()["memory"]
        assert all(x.device.type == device[:4].rstrip(":") for kept in saved.values() for x in kept.values())
        state.close()
    for on_cpu, on_gpu in zip(results["cpu"], results["cuda:0"], strict=True):
        assert torch.equal(on_cpu, on_gpu)
    assert not any(torch.equal(results["cpu"][0], one) for one in results["cpu"][1:])


def _hooks(gpu, method):
    _same_on_both(None, method, dist.get_rank())


@pytest.mark.parametrize("method", METHODS)
def test_hooks_of_a_process_group(method):
    on_emulated_gpu(2, _hooks, method)


def _communicators_hooks(comm, method):
    emulated_cuda()
    _same_on_both(comm, method, comm.rank)


@pytest.mark.parametrize("method", METHODS)
def test_hooks_of_a_communicator(method):
    ringreduce.run(_communicators_hooks, 2, method, timeout=100)


# --- torch.distributed -----------------------------------------------------------------------------------------


def _mesh(gpu):
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_available = lambda: True
    mesh = dist.device_mesh.DeviceMesh("cuda", torch.arange(4).view(2, 2), mesh_dim_names=("rows", "columns"))
    rank = dist.get_rank()
    x = torch.full((3,), float(rank), device="cuda:0")
    dist.all_reduce(x, group=mesh.get_group("columns"))
    assert (x.cpu() == 2 * (rank // 2 * 2) + 1).all()
    y = torch.full((3,), float(rank), device="cuda:0")
    dist.all_reduce(y, group=mesh["rows"].get_group())
    assert (y.cpu() == 2 * (rank % 2) + 2).all()


def test_device_mesh():
    on_emulated_gpu(4, _mesh)


def _coalesced(gpu):
    rank, world = dist.get_rank(), dist.get_world_size()
    xs = [torch.full((n,), rank + 1.0, device="cuda:0") for n in (5, 1000, 3)]
    with dist._coalescing_manager(device=torch.device("cuda:0"), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    assert all((x.cpu() == world * (world + 1) / 2).all() for x in xs)
    outs = [torch.zeros(world * n, device="cuda:0") for n in (4, 7)]
    with dist._coalescing_manager(device=torch.device("cuda:0")):
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((len(out) // world,), rank + 1.0, device="cuda:0"))
    wanted = [torch.arange(1.0, world + 1).repeat_interleave(len(out) // world) for out in outs]
    assert all(torch.equal(out.cpu(), want) for out, want in zip(outs, wanted, strict=True))


def test_coalescing():
    on_emulated_gpu(3, _coalesced)


def _compiled(gpu):
    import torch.distributed._functional_collectives as functional

    world = dist.get_world_size()

    def step(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    x = torch.ones(1000, device="cuda:0")
    assert (step(x).cpu() == 2 * world + 1).all()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert (compiled(x).cpu() == 2 * world + 1).all()


def test_torch_compile():
    on_emulated_gpu(2, _compiled)
