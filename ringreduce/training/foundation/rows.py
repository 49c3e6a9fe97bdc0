"""Sparse gradients: the rows of embeddings that a backward pass has used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Rows", "averaged_rows", "rows_of", "sparse_names"]

Rows = tuple[Any, Any]  # the numbers of rows, ascending, and their values [rows, ...]


def sparse_names(model: torch.nn.Module) -> set[str]:
    """Returns the names of the weights of all embeddings that were made with sparse=True."""
    weights = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
    return {name for name, p in model.named_parameters() if id(p) in weights and p.requires_grad}


def rows_of(parameter: Any) -> Rows:
    """Returns the rows of a parameter's gradient, on the CPU: none without a gradient, and all of a dense one."""
    gradient = parameter.grad
    if gradient is None:
        return torch.empty(0, dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:]), device="cpu")
    if not gradient.is_sparse or gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    gradient = gradient.coalesce()  # adds up duplicates, and sorts
    return gradient.indices()[0].cpu(), gradient.values().detach().cpu().contiguous()


def averaged_rows(parts: Sequence[Rows], divisor: int) -> Rows:
    """Returns the sum of several ranks' rows, added in their order, divided by a number.

    16-bit floats are added in float32, and rounded once.
    """
    indices, places = torch.unique(torch.cat([own for own, _ in parts]), return_inverse=True)
    dtype, row = parts[0][1].dtype, parts[0][1].shape[1:]
    total = torch.zeros((len(indices), *row), dtype=torch.float32 if dtype.itemsize == 2 else dtype)
    for place, (_, values) in zip(places.split([len(own) for own, _ in parts]), parts, strict=True):
        total.index_add_(0, place, values.to(total.dtype))
    return indices, total.mul_(1 / divisor).to(dtype)
