"""Parameters whose gradients are known exactly, and steps on them, sharded and not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import ringreduce

SHAPES = [(7, 5), (33,), (3, 4, 2), (), (1,), (0, 3), (6, 17), (20, 8)]
MATRICES = [(7, 5), (33, 2), (16, 16), (2, 40)]
SMALL_BUCKETS = 0.0003  # MiB: about 75 float32


class Parameters(nn.Module):
    """Its loss has the given gradients, whatever the parameters are."""

    def __init__(self, shapes: list[tuple[int, ...]] = SHAPES, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.all = nn.ParameterList(torch.randn(shape, generator=generator) for shape in shapes)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.all, gradients, strict=True))


def average_gradients(model: Parameters, step: int) -> list[torch.Tensor]:
    """Small whole numbers."""
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randint(-8, 9, p.shape, generator=generator).float() for p in model.all]


def rank_gradients(model: Parameters, step: int, rank: int, world: int) -> list[torch.Tensor]:
    """A rank's part: their average is exactly average_gradients, in whatever order they are added."""
    return [g + (2 * rank - (world - 1)) for g in average_gradients(model, step)]


def plain_steps(model: Parameters, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(average_gradients(model, step)).backward()
        optimizer.step()


def sharded_steps(comm: Any, model: Any, optimizer: Any, steps: range) -> None:
    inner = model.module if isinstance(model, ringreduce.DataParallel) else model
    for step in steps:
        optimizer.zero_grad()
        model(rank_gradients(inner, step, comm.rank, comm.size)).backward()
        optimizer.step()


def make(comm: Any, kind: Any, shapes: list[tuple[int, ...]] = SHAPES, stage: int = 2, **options: Any) -> Any:
    """A model and its sharded optimizer. Ranks begin with other values: rank 0's count."""
    model: Any = Parameters(shapes, seed=comm.rank)
    if stage == 1:
        model = ringreduce.DataParallel(model, comm)
    options = {"bucket_mb": SMALL_BUCKETS, **options}
    return model, ringreduce.ShardedOptimizer(model.parameters(), kind, comm, stage=stage, **options)


def values(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]
