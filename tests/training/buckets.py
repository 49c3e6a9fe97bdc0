"""Buckets as the wrappers show them to a hook, and ranks that exchange them, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import ringreduce
from ringreduce import compression
from ringreduce.compression import HalfPrecision, Int8Blocks, PowerSGD, SignMajority, TopK
from tests.conftest import on_group

TIMEOUT = 100.0

SHAPES = [(40, 30), (30,), (64, 8, 2), (1,)]
METHODS: dict[str, Any] = {
    "fp16": lambda comm: HalfPrecision("fp16", comm),
    "bf16": lambda comm: HalfPrecision("bf16", comm),
    "int8": Int8Blocks,
    "sign": lambda comm: SignMajority(comm, block=64),
    "vote": lambda comm: SignMajority(comm, error_feedback=False, block=64),
    "top-k": lambda comm: TopK(comm, fraction=0.05),
    "dgc": lambda comm: TopK(comm, fraction=0.05, momentum=0.5, clip=30.0, warmup_steps=3),
    "powersgd": lambda comm: PowerSGD(comm, matrix_rank=2, start_iter=1),
}


class FakeBucket:
    """The methods of torch.distributed.GradBucket."""

    def __init__(
        self, gradients: Sequence[Any], parameters: Sequence[Any], index: int = 0, last: bool = True
    ) -> None:
        self._flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        parts = self._flat.split([gradient.numel() for gradient in gradients])
        self._gradients = [part.view(like.shape) for part, like in zip(parts, gradients, strict=True)]
        self._parameters, self._index, self._last = list(parameters), index, last

    def index(self) -> int:
        return self._index

    def buffer(self) -> Any:
        return self._flat

    def gradients(self) -> list[Any]:
        return self._gradients

    def parameters(self) -> list[Any]:
        return self._parameters

    def is_last(self) -> bool:
        return self._last


class Ranks:
    """A state on each rank of a local group, and parameters of the given shapes."""

    def __init__(
        self,
        world: int,
        make: Callable[[Any], Any],
        shapes: Sequence[tuple[int, ...]],
        timeout: float = TIMEOUT,
    ) -> None:
        torch.set_num_threads(1)  # several threads of ranks on few cores; a worker's torch has as many again
        self.states = on_group(ringreduce.local_group(world, timeout=timeout), make)
        self.parameters = [torch.zeros(shape) for shape in shapes]

    def step(self, gradients: Sequence[Any], layout: Sequence[Sequence[int]] | None = None) -> Any:
        """Averages one flat gradient a rank, with the parameters spread over buckets as layout says.

        Returns:
            The average, flat and in the order of the parameters, after a look that it is the same on all ranks.
        """
        layout = [list(range(len(self.parameters)))] if layout is None else layout
        futures = []
        for index, members in enumerate(layout):
            for state, flat in zip(self.states, gradients, strict=True):
                parts = flat.split([parameter.numel() for parameter in self.parameters])
                own = [parts[member].view(self.parameters[member].shape) for member in members]
                bucket = FakeBucket(
                    own, [self.parameters[m] for m in members], index, index == len(layout) - 1
                )
                futures.append((members, compression.hook(state, bucket)))
        averages: list[list[Any]] = [[None] * len(self.parameters) for _ in self.states]
        for number, (members, future) in enumerate(futures):
            parts = future.wait().split([self.parameters[member].numel() for member in members])
            for member, part in zip(members, parts, strict=True):
                averages[number % len(self.states)][member] = part
        first, *others = [torch.cat(average) for average in averages]
        for other in others:
            assert torch.equal(first.view(torch.uint8), other.view(torch.uint8)), "ranks got different bits"
        return first


def integers(seed: int, count: int, largest: int = 8) -> Any:
    """float32 [count] with whole numbers, none of them zero."""
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (count,), generator=draw) * 2 - 1
    return (signs * torch.randint(1, largest + 1, (count,), generator=draw)).float()


def normal(seed: int, count: int) -> Any:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))
