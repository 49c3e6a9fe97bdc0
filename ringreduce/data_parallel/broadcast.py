"""Sending many tensors at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.memory import allocate

__all__ = ["broadcast_tensors"]

ALIGNMENT = 16  # bytes; no element of any dtype is larger
AT_ONCE = 32 << 20  # bytes, of the copies that are made


def broadcast_tensors(comm: Communicator, tensors: Sequence[Any], root: int) -> None:
    """Every rank's tensors get the root's values; few broadcasts, whatever the tensors' number and dtypes."""
    for group in _groups(tensors):
        _broadcast(comm, group, root)


def _groups(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors of one device, not too many bytes together."""
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        group: list[Any] = []
        size = 0
        for tensor in tensors:
            if tensor.device != device or tensor.numel() == 0:
                continue
            if group and size + tensor.nbytes > AT_ONCE:
                yield group
                group, size = [], 0
            group.append(tensor)
            size += tensor.nbytes
        if group:
            yield group


def _broadcast(comm: Communicator, tensors: list[Any], root: int) -> None:
    starts, end = [], 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    memory = allocate(end, torch.uint8, tensors[0].device)
    copies = [
        memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=True)
    ]
    with torch.no_grad():
        if comm.rank == root:
            for tensor, copy in zip(tensors, copies, strict=True):
                copy.copy_(tensor)
        comm.broadcast(memory, root)
        if comm.rank != root:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
