"""Gradients of the operations, as autograd functions.

As in Horovod, gradients of all-gather and broadcast are averaged over the ranks, and that of a reduce-scatter with
op=Sum is multiplied by their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["run"]


class Differentiable(torch.autograd.Function):
    """Calls ``forward(*tensors)``, and in the backward pass ``backward(*gradients)``.

    Both return a tensor or a list of tensors. Results that are integers have no gradients.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], backward: Callable[..., Any], *tensors: Any) -> Any:
        ctx.backward_of = backward
        found = run(*[tensor.detach() for tensor in tensors])
        if not isinstance(found, list | tuple):
            return found
        ctx.mark_non_differentiable(*[one for one in found if not one.is_floating_point()])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.backward_of(*[gradient.contiguous() for gradient in gradients])
        return None, None, *(found if isinstance(found, list | tuple) else [found])


def run(forward: Callable[..., Any], backward: Callable[..., Any], *tensors: Any) -> Any:
    """Returns ``forward(*tensors)``, differentiable if a tensor needs gradients."""
    if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors]):
        apply: Any = Differentiable.apply
        return apply(forward, backward, *tensors)
    return forward(*tensors)
