"""Small models with whole numbers in them: every order of adding their gradients gives the same float."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tests.conftest import on_threads

# Several buckets even for these models.
TINY = {"bucket_mb": 100 / (1 << 20), "first_bucket_mb": 20 / (1 << 20)}


def whole_(tensors: Iterable[Any], seed: int, low: int = -2, high: int = 3) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(torch.randint(low, high, tensor.shape, generator=generator))


def whole(*shape: int, seed: int) -> Any:
    tensor = torch.empty(shape)
    whole_([tensor], seed)
    return tensor


class TwoHeads(nn.Module):
    """Four layers; what forward uses of them can be chosen."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.left = nn.Linear(6, 3)
        self.right = nn.Linear(6, 3)
        self.never = nn.Linear(2, 2)
        whole_(self.parameters(), seed)

    def forward(self, x: Any, heads: str = "lr") -> Any:
        x = self.body(x).relu()
        return sum((getattr(self, {"l": "left", "r": "right"}[head])(x) for head in heads), torch.zeros(()))


def chain(seed: int = 0, dtype: Any = torch.float32) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    whole_(model.parameters(), seed)
    return model


def gradients(module: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    """Bit for bit; None beside None."""
    return len(ours) == len(theirs) and all(
        (a is None) == (b is None) and (a is None or (a.dtype == b.dtype and torch.equal(a, b)))
        for a, b in zip(ours, theirs, strict=True)
    )


def batch(rank: int, step: int = 0, dtype: Any = torch.float32) -> Any:
    """A rank's input in a step [8, 4]."""
    return whole(8, 4, seed=100 * step + rank).to(dtype)


def alone(model: Any, steps: int = 1, world: int = 4, dtype: Any = torch.float32) -> list[Any]:
    """The average of the ranks' gradients, by one process; added up over steps."""
    for step in range(steps):
        losses = [model(batch(rank, step, dtype)).sum() for rank in range(world)]
        (sum(losses) / world).backward()
    return gradients(model)


def with_heads(heads: list[str], step: int = 0) -> list[Any]:
    """The same of TwoHeads, where each rank uses heads of its own."""
    model = TwoHeads()
    (sum(model(batch(rank, step), own).sum() for rank, own in enumerate(heads)) / len(heads)).backward()
    return gradients(model)


def on_ranks(world: int, function: Any, *args: Any, timeout: float = 100.0) -> list[Any]:
    """Ranks as threads, each with one thread of torch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return on_threads(world, function, *args, timeout=timeout)
    finally:
        torch.set_num_threads(before)
