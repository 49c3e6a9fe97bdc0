"""Moves bytes between ranks: large tensors straight from memory to memory, small ones together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.broadcast import Broadcast

__all__ = ["as_bytes", "fill", "move"]

SMALL = 64 << 10  # bytes; a message of its own costs more than a copy
TAG = 0x656C  # keeps these messages apart from those of the program
Piece = tuple[int, Any]  # another rank, and the bytes for it or from it: uint8 [n]


def move(comm: Communicator, outgoing: Sequence[Piece], incoming: Sequence[Piece]) -> None:
    """Sends pieces of memory, and receives others, all at the same time.

    For each pair of ranks, what the one sends must be what the other receives, in the same order and of the same sizes.

    Raises:
        PeerLost: a rank died. The memory to receive into is then undefined.
    """
    works, packed = [], []
    for source, pieces in _by_rank(incoming).items():
        large, small, together = _sorted(pieces)
        if small:
            packed.append((together, small))
        messages = [*large, together] if small else large
        works += [comm.recv(piece, source, tag=TAG, async_op=True) for piece in messages]
    for dest, pieces in _by_rank(outgoing).items():
        large, small, together = _sorted(pieces)
        for piece, place in zip(small, _places(together, small), strict=True):
            place.copy_(piece)
        messages = [*large, together] if small else large
        works += [comm.send(piece, dest, tag=TAG, async_op=True) for piece in messages]
    for work in works:
        work.wait()
    for together, small in packed:
        for piece, place in zip(small, _places(together, small), strict=True):
            piece.copy_(place)


def _places(together: Any, small: list[Any]) -> tuple[Any, ...]:
    places: tuple[Any, ...] = together.split([len(piece) for piece in small])
    return places


def _by_rank(pieces: Sequence[Piece]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for rank, piece in pieces:
        if len(piece):
            found.setdefault(rank, []).append(piece)
    return found


def _sorted(pieces: list[Any]) -> tuple[list[Any], list[Any], Any]:
    """Returns the large pieces, the small ones, and memory for all the small ones."""
    small = [piece for piece in pieces if len(piece) < SMALL]
    together = torch.empty(sum(map(len, small)), dtype=torch.uint8)
    return [piece for piece in pieces if len(piece) >= SMALL], small, together


def fill(comm: Communicator, tensors: Sequence[Any], have: Sequence[int], lack: Sequence[int]) -> None:
    """Copies the values of tensors to the ranks that lack them. Every rank of ``have`` and ``lack`` must call it.

    Each of the ranks that have the values sends an equal share of the bytes, to all that lack them.

    Args:
        tensors: of the same dtypes and shapes on all ranks, without gaps in their memory.
        have, lack: the ranks that have the values, and those that do not.
    """
    if len(have) == 1 and len(have) + len(lack) == comm.size:
        Broadcast(comm)(tensors, have[0])
        return
    views = [as_bytes(tensor) for tensor in tensors]
    ends = list(accumulate(map(len, views), initial=0))
    bounds = [ends[-1] * place // len(have) for place in range(len(have) + 1)]

    def share(place: int) -> list[Any]:
        first, last = bounds[place], bounds[place + 1]
        return [
            view[max(first - start, 0) : max(last - start, 0)]
            for view, start in zip(views, ends, strict=False)
            if start < last and start + len(view) > first
        ]

    if comm.rank in have:
        place = have.index(comm.rank)
        turned = [*lack[place % len(lack) :], *lack[: place % len(lack)]] if lack else []
        move(comm, [(rank, piece) for rank in turned for piece in share(place)], [])
    elif comm.rank in lack:
        move(comm, [], [(rank, piece) for place, rank in enumerate(have) for piece in share(place)])


def as_bytes(tensor: Any) -> Any:
    """Returns a view of the tensor's memory, uint8 [nbytes], in the order of the memory.

    Raises:
        ValueError: the tensor's memory has gaps.
    """
    flat = tensor.detach()
    if not flat.is_contiguous():
        if torch.empty_like(flat, device="meta").stride() != flat.stride():
            raise ValueError(f"a tensor of shape {list(flat.shape)} and strides {flat.stride()} has gaps")
        flat = flat.as_strided((flat.numel(),), (1,))
    return flat.reshape(-1).view(torch.uint8)
