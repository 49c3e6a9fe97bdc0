"""Models whose parameters tell which gradients the servers have taken, and training runs for comparison."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # optimizers import it, which takes seconds; here before ranks are forked
from torch import nn

import ringreduce

WIDTH = 50  # odd parts: of 50 elements and rows, not every shard gets the same


class Counts(nn.Module):
    """Row r of its parameter counts the gradients that were made for r, in every element, with SGD and lr=1."""

    def __init__(self, rows: int, width: int = WIDTH) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(rows, width))

    def count(self, row: int) -> None:
        """Leaves a gradient that counts one up."""
        self.counts.grad = torch.zeros_like(self.counts)
        self.counts.grad[row] = -1.0

    def least(self) -> list[int]:
        """Of each row: an element that a shard has not counted yet is lower."""
        return [int(value) for value in self.counts.detach().amin(1)]

    def most(self) -> list[int]:
        return [int(value) for value in self.counts.detach().amax(1)]


def counting(comm: Any, rows: int, staleness: int | None, width: int = WIDTH, **more: Any) -> Any:
    torch.set_num_threads(1)
    model = Counts(rows, width)
    return model, ringreduce.ParameterServer(
        comm, model, torch.optim.SGD, lr=1.0, staleness=staleness, **more
    )


def network(seed: int = 0, dtype: Any = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5), nn.LayerNorm(5)).to(dtype)


def backward(model: nn.Module, step: int, part: int, dtype: Any = torch.float32) -> None:
    """Computes the gradient of a part of a step's batch."""
    generator = torch.Generator().manual_seed(1000 * step + part)
    x, y = torch.randn(6, 7, generator=generator), torch.randn(6, 5, generator=generator)
    nn.functional.mse_loss(model(x.to(dtype)), y.to(dtype)).backward()


def values(model: nn.Module) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def data_parallel(comm: Any, kind: Any, options: dict[str, Any], steps: int, dtype: Any) -> Any:
    """Synchronous training of the network, with what DataParallel averages."""
    torch.set_num_threads(1)
    model = ringreduce.DataParallel(network(comm.rank, dtype), comm)
    optimizer = kind(model.parameters(), **options)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step, comm.rank, dtype)
        optimizer.step()
    return values(model.module), optimizer.state_dict()


def with_servers(comm: Any, kind: Any, options: dict[str, Any], steps: int, dtype: Any, **more: Any) -> Any:
    """The same with a ParameterServer. None on dedicated servers."""
    torch.set_num_threads(1)
    model = network(comm.rank, dtype)
    server = ringreduce.ParameterServer(comm, model, kind, **more, **options)
    if comm.rank not in server.workers:
        return server.serve()
    for step in range(steps):
        server.zero_grad()
        backward(model, step, comm.rank, dtype)
        server.step()
    state = server.state_dict()
    server.close()
    return values(model), state
