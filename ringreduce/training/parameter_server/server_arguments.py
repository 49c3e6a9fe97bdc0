"""Checks the arguments of a ParameterServer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ringreduce._engine import values
from ringreduce.training.foundation.agreement import check_number

__all__ = ["check_arguments", "group_numbers", "groups_in"]


def check_arguments(
    size: int,
    optimizer: Any,
    staleness: Any,
    servers: Any,
    copies: Any,
    overlap: Any,
    compensation: Any,
    decay: Any,
) -> None:
    """Raises TypeError or ValueError if an argument is wrong for a group of this size."""
    if not isinstance(optimizer, type) or not issubclass(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a class of torch.optim.Optimizer, not {optimizer!r}")
    if issubclass(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer: LBFGS cannot be sharded: its step uses all parameters together")
    if size < 2:
        raise ValueError("ParameterServer needs at least 2 ranks: the only worker would be its own server")
    if staleness is not None:
        values.whole(staleness, "staleness", 0)
    if servers is not None:
        values.whole(servers, "servers", 1, size - 1, f"None or an integer (of {size} ranks, one must work)")
    values.flag(overlap, "overlap")
    if copies is not None:
        values.flag(copies, "copies")
    if copies and servers == 1:
        raise ValueError("copies: a single server has no neighbour to keep a copy")
    for value, name in ((overlap, "overlap"), (compensation is not None, "delay_compensation")):
        if value and staleness == 0:
            raise ValueError(f"{name} needs a staleness of at least 1, or None, because 0 leaves no delay")
    for value, name in ((compensation, "delay_compensation"), (decay, "compensation_decay")):
        if value is not None:
            check_number(value, name)
    if compensation is not None and not 0 <= compensation < float("inf"):
        raise ValueError(f"delay_compensation must be at least 0, not {compensation}")
    if decay is not None and not (compensation is not None and 0 <= decay < 1):
        raise ValueError(
            f"compensation_decay must be from 0 to 1, with a delay_compensation, not {decay} with {compensation}"
        )


def groups_in(groups: Any) -> list[dict[str, Any]]:
    """Returns a list of the groups. Raises TypeError if they are none."""
    found = list(groups) if isinstance(groups, Iterable) else [groups]
    if not all(isinstance(group, dict) for group in found):
        raise TypeError(f"groups must be dictionaries, as of torch's optimizers, not {groups!r}")
    return found


def group_numbers(named: Sequence[tuple[str, Any]], groups: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the number of each parameter's group. Raises ValueError if the groups do not hold all, and only these."""
    numbers = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
    missing = [name for name, p in named if id(p) not in numbers]
    if missing or len(numbers) != len(named):
        what = f"lack parameter '{missing[0]}'" if missing else "hold parameters that are not the model's"
        raise ValueError(f"groups must hold all parameters of the model that need gradients, but {what}")
    return [numbers[id(p)] for _, p in named]
