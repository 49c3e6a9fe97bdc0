"""Broadcasts of parameters, and of an optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ringreduce.frameworks.horovod.pickled import broadcast_object
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.torch.moving import broadcast_async_

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Copies the root's parameters to all ranks.

    Args:
        params: a state_dict, or pairs of names and tensors, such as ``model.named_parameters()``.

    Raises:
        ValueError: params is neither.
    """
    pairs: Any = sorted(params.items()) if isinstance(params, Mapping) else params
    try:
        named = [(str(name), value) for name, value in pairs]
    except (TypeError, ValueError) as error:
        kind = type(params).__name__
        raise ValueError(f"params must be a state_dict or pairs of names and tensors, not {kind}") from error
    tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
    _wait_for_all(tensors, root_rank, process_set)


def _wait_for_all(named: Iterable[tuple[str, Any]], root_rank: int, process_set: ProcessSet) -> None:
    handles = [broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in named]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copies the root's optimizer state, and options such as the learning rate, to all ranks.

    The other ranks' optimizers need not have made a step.

    Args:
        optimizer: the same kind on all ranks, for parameters of the same shapes.
        model: ignored.
    """
    state = optimizer.state_dict()
    kinds = tree_map(lambda leaf: _Kind(leaf) if isinstance(leaf, torch.Tensor) else leaf, state)
    theirs = broadcast_object(kinds, root_rank, "optimizer_state", process_set)
    is_root = theirs is kinds
    if not is_root:
        state = tree_map(lambda leaf: leaf.empty() if isinstance(leaf, _Kind) else leaf, theirs)
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    named = [(f"optimizer_state.{place}", tensor) for place, tensor in enumerate(tensors)]
    _wait_for_all(named, root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(state)


class _Kind:
    """Stands for a tensor, which travels by itself."""

    def __init__(self, tensor: Any) -> None:
        self._shape, self._dtype = tuple(tensor.shape), tensor.dtype

    def empty(self) -> Any:
        return torch.empty(self._shape, dtype=self._dtype)
