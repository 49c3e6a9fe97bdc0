"""What a forward pass returned: the tensors in it, and the parameters that they depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["parameters_reached", "tensors_in"]


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in nested mappings, lists, tuples, sets and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def parameters_reached(tensors: list[Any]) -> set[int]:
    """The id() of each leaf tensor that a backward pass from these tensors would give a gradient."""
    found = {id(tensor) for tensor in tensors if tensor.grad_fn is None}
    nodes = [tensor.grad_fn for tensor in tensors]
    seen = {None}  # keeps the nodes alive, so that each stays the same object
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if not node.next_functions and hasattr(node, "variable"):  # it accumulates a leaf's gradient
            found.add(id(node.variable))
        nodes.extend(following for following, _ in node.next_functions)
    return found
