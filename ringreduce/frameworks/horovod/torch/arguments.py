"""Checks of tensors."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.frameworks.horovod.arguments import Tensors

__all__ = ["plain", "plain_list"]


def plain(tensor: Any) -> Any:
    """Returns the tensor without its history of gradients. Raises TypeError or ValueError if it cannot be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch tensor, not {type(tensor).__name__}")
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError(
            f"tensor must be dense and in CPU memory, not {tensor.layout} on {tensor.device}; sparse_allreduce_async "
            "takes sparse tensors"
        )
    return tensor.detach() if tensor.requires_grad else tensor


def plain_list(tensors: Tensors) -> list[Any]:
    if isinstance(tensors, torch.Tensor) or not tensors:
        raise ValueError("tensors must be a list of at least one tensor")
    return [plain(tensor) for tensor in tensors]
