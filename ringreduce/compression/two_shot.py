"""An average of encoded values, decoded for each addition: by all_to_all, then all_gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from ringreduce.compression.group import Group

__all__ = ["as_floats", "padded_rows", "two_shot"]

Tensor = Any  # torch.Tensor
Coder = Callable[[Tensor], Tensor]  # float32 [rows, n] to uint8 [rows, bytes], or back


def padded_rows(flat: Tensor, rows: int, multiple: int) -> Tensor:
    """flat as [rows, columns], with zeros at the end so that columns is a multiple; a view where that takes none."""
    missing = -flat.numel() % (rows * multiple)
    return (pad(flat, (0, missing)) if missing else flat).view(rows, -1)


def as_floats(columns: Tensor) -> Tensor:
    """float32 [rows, n] of bytes [rows, 4 n] that may lie anywhere."""
    return columns.clone(memory_format=torch.contiguous_format).view(torch.float32)


def two_shot(group: Group, flat: Tensor, encode: Coder, decode: Coder, multiple: int) -> None:
    """Replaces flat by the average of all ranks' flat.

    Rank r gets everybody's r-th part, adds these up in float32 and sends the average to all. So every value is rounded
    twice, whatever the number of ranks.
    """
    parts = decode(group.all_to_all(encode(padded_rows(flat, group.size, multiple))))
    own = parts.sum(0, keepdim=True).div_(group.size)
    average = decode(group.all_gather(encode(own)[0]))
    flat.copy_(average.view(-1)[: flat.numel()])
