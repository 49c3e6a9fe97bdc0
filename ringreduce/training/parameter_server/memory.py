"""A worker's gradients and parameters, in flat memory that servers read and fill without copies."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ringreduce.training.foundation.bucket import shaped_like
from ringreduce.training.foundation.rows import Rows, rows_of
from ringreduce.training.parameter_server.server_layout import ServerLayout

__all__ = ["FlatGradients", "move_in"]


class FlatGradients:
    """A model's gradients: flat memory for each part, and the rows of each table."""

    def __init__(self, layout: ServerLayout) -> None:
        self._layout = layout
        self.flat = [part.bucket.allocate() for part in layout.parts]
        self.rows: list[Rows] = []
        self.used: list[bool] = []
        self._views = [
            (slot, slot.of(flat))
            for part, flat in zip(layout.parts, self.flat, strict=True)
            for slot in part.bucket.slots
        ]

    def take(self, keep: bool = False) -> None:
        """Takes the gradients of the parameters.

        Args:
            keep: whether the parameters keep their own memory of gradients. Otherwise they get this one, so that
                ``zero_grad(set_to_none=False)`` makes the copy of the next gradients unnecessary.

        Raises:
            TypeError: the gradient of a parameter is sparse, but its module does not say so.
        """
        self.used = [slot.parameter.grad is not None for slot in self._layout.slots]
        for slot, view in self._views:
            gradient = slot.parameter.grad
            if gradient is None:
                view.zero_()
            elif gradient.layout is not torch.strided:
                raise TypeError(
                    f"the gradient of parameter '{slot.name}' is sparse, but no Embedding with sparse=True has it"
                )
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
                slot.parameter.grad = gradient if keep else view
        self.rows = [rows_of(table.slot.parameter) for table in self._layout.tables]

    def of(self, shard: int) -> tuple[list[Any], list[Rows]]:
        """Returns a shard's ranges of the parts, and its rows, numbered from its first one."""
        dense = [part.of(flat, shard) for part, flat in zip(self._layout.parts, self.flat, strict=True)]
        rows = []
        for table, (indices, values) in zip(self._layout.tables, self.rows, strict=True):
            bounds = torch.tensor(table.ranges[shard])
            begin, end = torch.searchsorted(indices, bounds).tolist()
            rows.append((indices[begin:end] - bounds[0], values[begin:end]))
        return dense, rows


def move_in(layout: ServerLayout) -> list[Any]:
    """Moves the parameters of the layout's parts into flat memory, and returns it."""
    memory = []
    for part in layout.parts:
        flat = part.bucket.allocate()
        for slot in part.bucket.slots:
            home = shaped_like(slot.parameter, flat[slot.start : slot.start + slot.parameter.numel()])
            home.copy_(slot.parameter.detach())
            slot.parameter.data = from_dlpack(home)  # saving it saves only its own memory
        memory.append(flat)
    return memory
