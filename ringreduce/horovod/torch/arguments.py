"""Checks of the operations' arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.horovod import job
from ringreduce.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.horovod.request import Operation, Request
from ringreduce.horovod.torch.reductions import Op

__all__ = ["EVERYONE", "Tensors", "chosen_op", "plain", "plain_list", "submit"]

EVERYONE = global_process_set
Tensors = Sequence[Any]


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


def chosen_op(op: Any, average: bool | None, process_set: ProcessSet) -> Op:
    """Returns the op that a call asks for. Raises ValueError if that cannot be done."""
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both")
        return Op.Average if average else Op.Sum
    if op is None:
        return Op.Average
    chosen: Op = op if type(op) is Op else Op(op)
    if chosen is Op.Adasum:
        if process_set is not EVERYONE:
            raise ValueError("op=Adasum needs the global process set")
        if job.size() & (job.size() - 1):
            raise ValueError(f"op=Adasum needs a power of two of ranks, not {job.size()}")
    return chosen


def submit(operation: Operation, name: str | None, process_set: ProcessSet, blocking: bool) -> Request:
    return process_set.driver().submit_named(operation, name, blocking)
