"""Sending many tensors at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.memory import allocate

__all__ = ["Broadcast"]

ALIGNMENT = 16  # bytes; no element of any dtype is larger
AT_ONCE = 32 << 20  # bytes, of the copies that are made


class Broadcast:
    """Few broadcasts for many tensors, of any dtypes. Keeps the memory for the next tensors of the same kinds."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._kinds: list[Any] = []
        self._packs: list[Pack] = []

    def __call__(self, tensors: Sequence[Any], root: int) -> None:
        """Every rank's tensors get the root's values."""
        kinds = [(tensor.dtype, tensor.shape, tensor.device) for tensor in tensors]
        if kinds != self._kinds:
            self._kinds = kinds
            self._packs = [Pack(members, tensors) for members in _groups(tensors)]
        for pack in self._packs:
            pack.broadcast(self._comm, tensors, root)


def _groups(tensors: Sequence[Any]) -> Iterator[list[int]]:
    """The places of tensors of one device, of not too many bytes together."""
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        group: list[int] = []
        size = 0
        for place, tensor in enumerate(tensors):
            if tensor.device != device or tensor.numel() == 0:
                continue
            if group and size + tensor.nbytes > AT_ONCE:
                yield group
                group, size = [], 0
            group.append(place)
            size += tensor.nbytes
        if group:
            yield group


class Pack:
    """Memory for copies of some of the tensors, those at the given places."""

    def __init__(self, places: list[int], tensors: Sequence[Any]) -> None:
        self._places = places
        likes = [tensors[place] for place in places]
        starts, end = [], 0
        for like in likes:
            starts.append(end)
            end += -(-like.nbytes // ALIGNMENT) * ALIGNMENT
        self._memory = allocate(end, torch.uint8, likes[0].device)
        self._copies = [
            self._memory[start : start + like.nbytes].view(like.dtype).view(like.shape)
            for start, like in zip(starts, likes, strict=True)
        ]

    def broadcast(self, comm: Communicator, tensors: Sequence[Any], root: int) -> None:
        own = [tensors[place] for place in self._places]
        with torch.no_grad():
            if comm.rank == root:
                torch._foreach_copy_(self._copies, own)
            comm.broadcast(self._memory, root)
            if comm.rank != root:
                torch._foreach_copy_(own, self._copies)
