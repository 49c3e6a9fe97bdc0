"""The largest elements of the gradient, and their positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ringreduce.training.compression.group_copy import Tensor
from ringreduce.training.compression.method import Compression, Gradients, Memory

__all__ = ["TopK", "largest"]

SAMPLES = 1 << 14
WARMUP_FROM = 0.25  # the fraction in the first step


@dataclass(eq=False, kw_only=True)
class TopK(Compression):
    """Sends only the largest elements of every rank, and keeps the others for later steps.

    This is Deep Gradient Compression (Lin et al., 2018): elements accumulate until they are large enough to be sent.
    With ``momentum``, velocities accumulate instead, so that a delayed element has the same momentum as one that is not
    delayed ("momentum correction"). The optimizer must then have no momentum of its own.

    An element travels as a float32 and an int32. A rank receives N-1 times as many elements as it sends.

    Args:
        fraction: the fraction of a bucket's elements to send, rounded up. All ranks send the same number.
        momentum: the factor of momentum correction. 0 means none.
        factor_masking: whether to reset the velocity of the elements that were sent ("momentum factor masking").
        clip: the largest norm of a bucket's gradient on one rank. A gradient with a larger norm is scaled down before
            it accumulates. (The paper clips the norm of the whole gradient; for an optimizer that clips at c, it
            clips at c / sqrt(N).)
        warmup_steps: the number of steps in which the fraction decreases exponentially from 1/4.
    """

    fraction: float = 0.01
    momentum: float = 0.0
    factor_masking: bool = True
    clip: float | None = None
    warmup_steps: int = 0

    def __post_init__(self, group: Any) -> None:
        self._require("fraction", 0 < self.fraction <= 1, "be above 0 and at most 1")
        self._require("momentum", 0 <= self.momentum < 1, "be at least 0 and below 1")
        self._require("clip", self.clip is None or self.clip > 0, "be positive")
        self._require("warmup_steps", self.warmup_steps >= 0, "not be negative")
        super().__post_init__(group)
        self._velocity = self._memory["velocity"] = Memory()
        self._unsent = self._memory["unsent"] = Memory()

    def fraction_at(self, step: int) -> float:
        """Returns the fraction in a step. Steps count from 0."""
        if step >= self.warmup_steps or self.fraction >= WARMUP_FROM:
            return self.fraction
        return float(WARMUP_FROM * (self.fraction / WARMUP_FROM) ** (step / self.warmup_steps))

    def _average(self, gradients: Gradients) -> None:
        flat, group = gradients.flat, self._group
        count = math.ceil(self.fraction_at(gradients.step) * len(flat))
        of = (gradients.parameters, gradients.lengths, flat.device)
        unsent = self._unsent.flat(*of)
        velocity = self._velocity.flat(*of) if self.momentum else None
        norm = flat.norm()
        if norm.isfinite():
            if self.clip is not None and norm > self.clip:
                flat.mul_(self.clip / norm)
            unsent += flat if velocity is None else velocity.mul_(self.momentum).add_(flat)
            places = largest(unsent, count)
            values = unsent[places]
        else:  # the gradient is lost: send NaN, so that all ranks know
            places, values = torch.arange(count, device=flat.device), flat.new_full((count,), math.nan)
        sent = torch.cat([places.to(torch.int32).view(torch.float32), values])
        all_places, all_values = group.all_gather(sent).split(count, 1)
        if all_values.isfinite().all():
            unsent[places] = 0
            if velocity is not None and self.factor_masking:
                velocity[places] = 0
        flat.zero_()
        for rank_places, rank_values in zip(all_places, all_values, strict=True):
            flat.index_add_(0, rank_places.view(torch.int32), rank_values)
        flat.div_(group.size)


def largest(x: Tensor, count: int) -> Tensor:
    """Returns the positions of the count elements of x [n] with the largest magnitudes: int64, in any order.

    It estimates a threshold from a sample, so that slightly more than count elements are above it, and selects among
    those. If fewer are above, it selects among all elements.
    """
    sizes = x.abs()
    stride = max(x.numel() // SAMPLES, 1)
    if stride > 1 and 4 * count < x.numel():
        sample = sizes[::stride]
        expected = count * len(sample) / x.numel()
        rank = math.ceil(expected + 3 * math.sqrt(expected)) + 1  # in one of 700 cases fewer are above
        threshold = sample.topk(min(rank, len(sample)), sorted=False).values.min()
        candidates = (sizes >= threshold).nonzero().view(-1)
        if len(candidates) >= count:
            return candidates[sizes[candidates].topk(count, sorted=False).indices]
    return sizes.topk(count, sorted=False).indices
