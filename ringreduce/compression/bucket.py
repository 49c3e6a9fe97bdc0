"""A bucket of gradients as the methods see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Bucket"]

Tensor = Any  # torch.Tensor


@dataclass(frozen=True)
class Bucket:
    """Gradients of neighbouring parameters, one behind the other.

    Attributes:
        flat: float32 [n]; a method reads the gradient here and leaves the average in its place.
        parameters: their numbers, in the order in which parameters were first seen by the state.
        shapes: of each parameter.
        step: how many steps were before; the same for all buckets of a step.
    """

    flat: Tensor
    parameters: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    step: int

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of flat, which is laid out as the bucket is, one for each parameter and of its shape."""
        parts = flat.split(self.lengths)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
