"""The largest elements of the gradient, and where they are."""

from __future__ import annotations

import math
from typing import Any

import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.base import Compression
from ringreduce.compression.bucket import Bucket
from ringreduce.compression.memory import Memory

__all__ = ["TopK", "largest"]

Tensor = Any  # torch.Tensor
SAMPLES = 1 << 14
WARMUP_FROM = 0.25  # the fraction of the first step


class TopK(Compression):
    """Every rank sends its largest elements only, and keeps the others for later steps.

    Deep Gradient Compression (Lin et al., 2018): what is not sent is added up until it is large enough to be. With
    ``momentum`` it is velocities that are added up, as what was held back must have the momentum that it would have
    had ("momentum correction"): the optimizer must then have no momentum of its own.

    An element travels as a float32 and an int32, and a rank gets (N-1) times its own number of them.

    Args:
        fraction: of a bucket's elements, rounded up; all ranks send as many.
        momentum: of momentum correction; 0 for none.
        factor_masking: whether the velocity of what is sent begins anew ("momentum factor masking").
        clip: the largest norm of a bucket's gradient on one rank; what is above is scaled down, before anything is
            added up. (The paper takes the whole gradient's, and of an optimizer that clips at c here c / sqrt(N).)
        warmup_steps: in how many steps the fraction goes down from 1/4, exponentially.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        fraction: float = 0.01,
        momentum: float = 0.0,
        factor_masking: bool = True,
        clip: float | None = None,
        warmup_steps: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {fraction}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, not {momentum}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, not {clip}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, not {warmup_steps}")
        super().__init__(group, timeout=timeout)
        self.fraction, self.momentum, self.clip, self.warmup_steps = fraction, momentum, clip, warmup_steps
        self.factor_masking = factor_masking
        self._velocity, self._unsent = Memory(), Memory()

    def fraction_at(self, step: int) -> float:
        """The fraction of a step, from 0."""
        if step >= self.warmup_steps or self.fraction >= WARMUP_FROM:
            return self.fraction
        return float(WARMUP_FROM * (self.fraction / WARMUP_FROM) ** (step / self.warmup_steps))

    def _average(self, bucket: Bucket) -> None:
        flat, group = bucket.flat, self._group
        count = math.ceil(self.fraction_at(bucket.step) * flat.numel())
        unsent = self._unsent.flat(bucket)
        norm = flat.norm()
        if norm.isfinite():
            unsent += self._gained(bucket, norm)
            places = largest(unsent, count)
            values = unsent[places]
        else:  # the gradient is lost, and all ranks learn of it
            places, values = torch.arange(count), torch.full((count,), math.nan)
        sent = torch.cat([places.to(torch.int32).view(torch.uint8), values.view(torch.uint8)])
        all_places, all_values = group.all_gather(sent).split(4 * count, 1)
        all_values = all_values.contiguous().view(torch.float32)
        if all_values.isfinite().all():
            unsent[places] = 0
            if self.momentum and self.factor_masking:
                self._velocity.flat(bucket)[places] = 0
        flat.zero_()
        for rank_places, rank_values in zip(
            all_places.contiguous().view(torch.int32), all_values, strict=True
        ):
            flat.index_add_(0, rank_places, rank_values)
        flat.div_(group.size)

    def _gained(self, bucket: Bucket, norm: Tensor) -> Tensor:
        """What a step adds to what is still to be sent: the gradient, or the velocity that it leads to."""
        gradient = bucket.flat
        if self.clip is not None and norm > self.clip:
            gradient.mul_(self.clip / norm)
        if not self.momentum:
            return gradient
        return self._velocity.flat(bucket).mul_(self.momentum).add_(gradient)

    def _memory(self) -> dict[str, Any]:
        return {"velocity": self._velocity.state_dict(), "unsent": self._unsent.state_dict()}

    def _load_memory(self, saved: dict[str, Any]) -> None:
        self._velocity.load_state_dict(saved["velocity"])
        self._unsent.load_state_dict(saved["unsent"])


def largest(x: Tensor, count: int) -> Tensor:
    """The places of the count elements of x [n] that are largest in magnitude, int64, in any order.

    A threshold that every hundredth or so element lets expect a few more than count above it leaves few to choose from.
    Where there turn out to be too few, all are looked at.
    """
    sizes = x.abs()
    stride = max(x.numel() // SAMPLES, 1)
    if stride > 1 and 4 * count < x.numel():
        sample = sizes[::stride]
        expected = count * len(sample) / x.numel()
        rank = math.ceil(expected + 3 * math.sqrt(expected)) + 1  # too few are above in one of 700 cases
        threshold = sample.topk(min(rank, len(sample)), sorted=False).values.min()
        candidates = (sizes >= threshold).nonzero().view(-1)
        if len(candidates) >= count:
            return candidates[sizes[candidates].topk(count, sorted=False).indices]
    return sizes.topk(count, sorted=False).indices
