"""State dicts as a description and a list of tensors: the one is pickled, the others travel as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Leaf", "described", "first_difference", "joined", "split"]


@dataclass(frozen=True)
class Leaf:
    """Stands for a tensor in a description.

    Attributes:
        number: its position in the list of tensors.
    """

    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str

    def empty(self) -> Any:
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


def split(tree: Any) -> tuple[Any, list[Any]]:
    """Returns a description of nested dicts, lists and tuples, and their tensors, which are not copied."""
    tensors: list[Any] = []

    def walk(node: Any) -> Any:
        if torch.is_tensor(node):
            tensors.append(node.detach())
            return Leaf(len(tensors) - 1, node.dtype, tuple(node.shape), node.device.type)
        if isinstance(node, dict):
            return type(node)((key, walk(value)) for key, value in node.items())
        if type(node) in (list, tuple):
            return type(node)(map(walk, node))
        return node

    return walk(tree), tensors


def joined(description: Any, tensors: list[Any]) -> Any:
    """Reverses :func:`split`."""
    if isinstance(description, Leaf):
        return tensors[description.number]
    if isinstance(description, dict):
        return type(description)((key, joined(value, tensors)) for key, value in description.items())
    if type(description) in (list, tuple):
        return type(description)(joined(value, tensors) for value in description)
    return description


def described(tensors: dict[str, Any]) -> list[str]:
    """Returns name, dtype and shape of each tensor, as text."""
    return [
        f"'{name}': {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for name, tensor in tensors.items()
    ]


def first_difference(own: list[str], reference: list[str]) -> tuple[str, str]:
    """Returns the first line in which two descriptions differ, of each."""
    place = 0
    while place < min(len(own), len(reference)) and own[place] == reference[place]:
        place += 1
    mine, theirs = (lines[place] if place < len(lines) else "nothing more" for lines in (own, reference))
    return mine, theirs
