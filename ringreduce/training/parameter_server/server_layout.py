"""Divides a model among the servers, in the same way on all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ringreduce.training.foundation.assignment import make_buckets
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.kinds import Cut, choose_cut
from ringreduce.training.foundation.placement import balanced
from ringreduce.training.foundation.shares import ALIGNMENT, arrange

__all__ = ["EmbeddingTable", "ServerLayout", "ServerPart", "check_optimizer", "named_parameters"]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class ServerPart:
    """The parameters of one dtype, side by side in flat memory, and each shard's range of it.

    Attributes:
        ranges: the begin and end of each shard, in elements.
    """

    def __init__(self, bucket: Bucket, cut: Cut, owners: Sequence[int], shards: int) -> None:
        placement = arrange(bucket, cut, owners, shards)
        self.bucket = bucket
        self.ranges = [placement.part(shard) for shard in range(shards)]

    def of(self, memory: Any, shard: int) -> Any:
        """Returns a shard's range of flat memory."""
        begin, end = self.ranges[shard]
        return memory[begin:end]


class EmbeddingTable:
    """An embedding whose gradients are sparse, and each shard's range of its rows."""

    def __init__(self, slot: Slot, shards: int) -> None:
        self.slot = slot
        self.rows, *shape = slot.parameter.shape
        self.row = tuple(shape)
        self.row_size = math.prod(shape)
        self.ranges = [(self.rows * s // shards, self.rows * (s + 1) // shards) for s in range(shards)]

    def of(self, shard: int) -> Any:
        """Returns a shard's range of the parameter, the same memory."""
        begin, end = self.ranges[shard]
        return self.slot.parameter.data[begin:end]


class ServerLayout:
    """The parts and tables of a model.

    Args:
        named: the parameters that need gradients, by name.
        sparse: the names of those whose gradients are sparse.

    Attributes:
        slots: a slot for each parameter, in the model's order.
        cut: whether parts are cut by elements or between parameters.
    """

    def __init__(
        self, named: Sequence[tuple[str, Any]], sparse: set[str], optimizer: Any, shards: int
    ) -> None:
        self.shards = shards
        self.slots = [Slot(number, name, parameter) for number, (name, parameter) in enumerate(named)]
        dense = [slot for slot in self.slots if slot.name not in sparse]
        self.cut: Cut = choose_cut(optimizer, None) if dense else "elements"
        loads = [0] * shards
        owners = dict(
            zip(dense, balanced([slot.parameter.nbytes for slot in dense], loads, ALIGNMENT), strict=True)
        )
        self.parts = [
            ServerPart(bucket, self.cut, [owners[slot] for slot in bucket.slots], shards)
            for bucket in make_buckets(dense, math.inf, math.inf)
        ]
        self.tables = [EmbeddingTable(slot, shards) for slot in self.slots if slot.name in sparse]


def named_parameters(model: nn.Module) -> list[tuple[str, Any]]:
    """Returns the parameters that need gradients, with names.

    Raises:
        ValueError: there are none, or one is not in CPU memory or has a dtype that is not served.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, parameter in named:
        if nn.parameter.is_lazy(parameter):
            raise ValueError(f"parameter '{name}' has no shape yet: call the model once first")
        if parameter.device.type != "cpu":
            raise ValueError(
                f"parameter '{name}' is on {parameter.device}; a ParameterServer serves CPU memory"
            )
        if parameter.dtype not in FLOATS:
            raise ValueError(
                f"parameter '{name}' has dtype {str(parameter.dtype).removeprefix('torch.')}; a ParameterServer takes "
                "float64, float32, float16 and bfloat16"
            )
    if not named:
        raise ValueError("model has no parameter that needs a gradient")
    return named


def check_optimizer(
    optimizer: Any, options: dict[str, Any], named: Sequence[tuple[str, Any]], sparse: set[str]
) -> bool:
    """Tries an optimizer on a few numbers.

    Returns:
        Whether its step on a sparse gradient changes only the gradient's rows.

    Raises:
        ValueError: it does not take the model's gradients.
    """
    only_its_rows = True
    for kind in (False, True):
        name = next((name for name, _ in named if (name in sparse) == kind), None)
        if name is None:
            continue
        before = torch.ones(4, 2)
        parameter = nn.Parameter(before.clone())
        tried = optimizer([parameter], **options)
        try:
            for row in (0, 1):
                before = parameter.detach().clone()
                gradient = torch.zeros(4, 2)
                gradient[row] = 1.0
                parameter.grad = gradient.to_sparse(1) if kind else gradient
                tried.step()
        except (RuntimeError, ValueError) as error:
            gradients = "sparse" if kind else "dense"
            raise ValueError(
                f"optimizer: {optimizer.__name__} does not take the {gradients} gradient of parameter '{name}': {error}"
            ) from error
        if kind:
            only_its_rows = torch.equal(parameter.detach()[[0, 2, 3]], before[[0, 2, 3]])
    return only_its_rows
