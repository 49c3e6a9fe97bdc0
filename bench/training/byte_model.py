"""A model that predicts the next byte of the sources of Python's standard library, and its training."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu

CONTEXT, WIDTH, EMBEDDING = 16, 768, 48
BATCH, RATE = 128, 3e-3  # samples per rank, and Adam's learning rate
HELD_OUT_BATCHES, HELD_OUT_BATCH = 16, 1024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + gelu(self.linear(self.norm(x)))


class ByteModel(nn.Module):
    """Returns scores [batch, 256] of the byte that follows bytes [batch, CONTEXT]. Has 1.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, EMBEDDING)
        self.first = nn.Linear(CONTEXT * EMBEDDING, WIDTH)
        self.block, self.norm, self.last = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.block(gelu(self.first(self.embedding(x).flatten(1))))))


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the training bytes, and the last tenth, which is held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    whole = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    end = whole.numel() * 9 // 10
    return whole[:end].long(), whole[end:].long()


def batch(source: torch.Tensor, size: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, source.numel() - CONTEXT, (size, 1), generator=draw)
    windows = source[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


class Training:
    """Training with Adam. The learning rate warms up over the first tenth of the steps, and then falls linearly to 0.

    Args:
        rank: The rank, which determines its batches.
        steps: The number of steps.
        wrap: Wraps the model for training on several ranks.
        seed: The seed of the weights and batches.
    """

    def __init__(self, rank: int, steps: int, wrap: Callable[[nn.Module], Any], seed: int = 0) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = ByteModel()
        self.wrapped = wrap(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        rising = max(steps // 10, 1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / rising, (steps - step) / max(steps - rising, 1))
        )
        self.source, self.held_out = text()
        self.draw = torch.Generator().manual_seed(1000 * seed + 1 + rank)

    def step(self) -> None:
        x, y = batch(self.source, BATCH, self.draw)
        self.optimizer.zero_grad()
        cross_entropy(self.wrapped(x), y).backward()
        self.optimizer.step()
        self.schedule.step()

    def held_out_loss(self) -> float:
        """Returns the loss in nats per byte. The held-out bytes do not depend on the seed."""
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            batches = [batch(self.held_out, HELD_OUT_BATCH, draw) for _ in range(HELD_OUT_BATCHES)]
            return sum(cross_entropy(self.model(x), y).item() for x, y in batches) / HELD_OUT_BATCHES
