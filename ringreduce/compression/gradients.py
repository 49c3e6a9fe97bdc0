"""Gradients as the methods see them, and what methods remember of each of their elements between steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

__all__ = ["Gradients", "Memory", "Tensor", "padded_rows"]

Tensor = Any  # torch.Tensor


@dataclass(frozen=True)
class Gradients:
    """The gradients of a bucket's parameters, one behind the other.

    Attributes:
        flat: float32 [n]; a method reads the gradients here and leaves the averages in their place.
        parameters: their numbers, in the order in which the state first saw parameters.
        shapes: torch.Size of each parameter.
        step: how many steps were before; the same for all buckets of a step.
    """

    flat: Tensor
    parameters: tuple[int, ...]
    shapes: tuple[Any, ...]
    step: int

    @property
    def lengths(self) -> list[int]:
        """The number of elements of each parameter."""
        return [shape.numel() for shape in self.shapes]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of flat, which is laid out as the gradients are, one for each parameter and of its shape."""
        return [part.view(shape) for part, shape in zip(flat.split(self.lengths), self.shapes, strict=True)]


class Memory(dict[int, Tensor]):
    """A float32 for each element of the gradient, zero at first: flat tensors by the parameters' numbers.

    Methods see it as one flat tensor per bucket, but it belongs to the parameters: after the first step both wrappers
    put parameters into other buckets, in the order in which their gradients come.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flats: dict[tuple[int, ...], Tensor] = {}  # of today's buckets: self's values are views of them

    def flat(self, parameters: tuple[int, ...], lengths: list[int]) -> Tensor:
        """What belongs to a bucket of these parameters, to be read and written.

        Raises:
            ValueError: a parameter has another length in what was loaded.
        """
        if parameters not in self._flats:
            flat: Tensor = torch.zeros(sum(lengths))
            for number, view in zip(parameters, flat.split(lengths), strict=True):
                old = self.get(number, view)
                if len(old) != len(view):
                    raise ValueError(
                        f"the state is of another model: parameter {number} has {len(view)} elements, "
                        f"and {len(old)} in what was loaded"
                    )
                self[number] = view.copy_(old)
            self._flats = {key: kept for key, kept in self._flats.items() if not set(key) & set(parameters)}
            self._flats[parameters] = flat
        return self._flats[parameters]


def padded_rows(flat: Tensor, rows: int, multiple: int) -> Tensor:
    """flat as [rows, columns], with zeros at the end so that columns is a multiple; a view where that takes none."""
    missing = -flat.numel() % (rows * multiple)
    return (pad(flat, (0, missing)) if missing else flat).view(rows, -1)
