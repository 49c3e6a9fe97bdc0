"""Models trained on the emulated GPU, whose parameters must have the bits that the CPU gives them.

After `from tests.frameworks.torch.emulated_cuda import before_torch, trained`, `trained.train(STORE)` trains with each
of WRAPPERS, on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ringreduce
from ringreduce import compression
from tests.frameworks.torch import gpu_groups

WORLD, STEPS = 2, 4


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data_parallel(comm: Any, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    wrapped = ringreduce.DataParallel(model, comm)
    return wrapped, sgd(wrapped)


def sharded(stage: int) -> Callable[[Any, nn.Module], tuple[nn.Module, torch.optim.Optimizer]]:
    def wrap(comm: Any, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        optimizer = ringreduce.ShardedOptimizer(
            model.parameters(), torch.optim.AdamW, comm, lr=0.01, stage=stage
        )
        return model, optimizer

    return wrap


def ddp(comm: Any, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    wrapped = nn.parallel.DistributedDataParallel(model)
    return wrapped, sgd(wrapped)


def ddp_with_hook(comm: Any, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(compression.PowerSGD(None, matrix_rank=2, start_iter=1), compression.hook)
    return wrapped, sgd(wrapped)


WRAPPERS = {
    "DataParallel": data_parallel, "ShardedOptimizer 1": sharded(1), "ShardedOptimizer 2": sharded(2),
    "DDP": ddp, "DDP, hook": ddp_with_hook,
}  # fmt: skip


def parameters(name: str, comm: Any, device: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    layers = [nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 300), nn.Tanh(), nn.Linear(300, 5)]
    model = nn.Sequential(*layers).to(device)
    wrapped, optimizer = WRAPPERS[name](comm, model)
    of_rank = torch.Generator().manual_seed(comm.rank)
    before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    for _ in range(STEPS):
        x, y = (torch.randn(8, n, generator=of_rank).to(device) for n in (20, 5))
        optimizer.zero_grad()
        ((wrapped(x) - y) ** 2).mean().backward()
        optimizer.step()
    trained = [parameter.detach().cpu() for parameter in model.parameters()]
    assert not any(torch.equal(a, b) for a, b in zip(before, trained, strict=True))
    return trained


def main(comm: Any, store: str) -> dict[str, list[torch.Tensor]]:
    gpu_groups.emulated_cuda()
    torch.distributed.init_process_group(
        "ringreduce", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size
    )
    found = {}
    for name in WRAPPERS:
        on_cpu, found[name] = parameters(name, comm, "cpu"), parameters(name, comm, "cuda:0")
        for a, b in zip(on_cpu, found[name], strict=True):
            assert torch.equal(a, b), (name, (a - b).abs().max())
    torch.distributed.destroy_process_group()
    return found


def train(store: str) -> None:
    """Prints what has trained well."""
    ranks = ringreduce.run(main, WORLD, store, timeout=100)
    for wrapper, of_one in ranks[0].items():
        for a, b in zip(of_one, ranks[1][wrapper], strict=True):
            assert torch.equal(a, b), wrapper
        print(wrapper)
