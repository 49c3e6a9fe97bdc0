"""Optimizer states: joined from all ranks' pieces, and cut to this rank's."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.bucket import shaped_like
from ringreduce.sharded_optimizer.shares import Piece, Share

__all__ = ["cut", "gather_share"]

State = dict[str, Any]  # of one parameter or piece, as the optimizer inside has it
Part = tuple[int, int, State]  # which elements of the parameter, and their state


def gather_share(
    comm: Communicator, share: Share, states: dict[Any, State], root: int | None
) -> dict[int, State]:
    """The states of a bucket's parameters by number, whole and on the CPU; empty on ranks that do not ask.

    Args:
        states: this rank's, by piece.
        root: the rank that gets them; None: all.
    """
    own = {
        piece.slot.number: (piece.first, piece.last, _on_cpu(states[piece.parameter]))
        for piece in share.pieces
        if piece.parameter in states
    }
    everybodys = comm.all_gather_object(own) if root is None else comm.gather_object(own, root) or []
    found = {}
    for slot in share.bucket.slots:
        parts = [parts[slot.number] for parts in everybodys if slot.number in parts]
        if parts:
            found[slot.number] = _joined(slot.parameter, parts)
    return found


def _on_cpu(state: State) -> State:
    return {key: value.cpu() if torch.is_tensor(value) else value for key, value in state.items()}


def _joined(parameter: Any, parts: list[Part]) -> State:
    """One parameter's state from its pieces'; a part holds its first and last element, and the state."""
    _, _, some = parts[0]
    return {key: _joined_value(parameter, key, parts) for key in some}


def _joined_value(parameter: Any, key: str, parts: list[Part]) -> Any:
    first, last, state = parts[0]
    value = state[key]
    if not _is_cut(key, value, (last - first,)):
        return value
    flat = torch.empty(parameter.numel(), dtype=value.dtype)
    for first, last, state in parts:
        flat[first:last] = state[key]
    return shaped_like(parameter, flat)


def cut(piece: Piece, state: State) -> State:
    """What a rank keeps of a parameter's whole state: copies, as steps will change them."""
    shape = piece.slot.parameter.shape
    return {
        key: piece.of(value).clone() if _is_cut(key, value, shape) else copy.deepcopy(value)
        for key, value in state.items()
    }


def _is_cut(key: str, value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value of the state has a number for each element of what it belongs to.

    "step" never has: torch's optimizers call their count of steps so, and a parameter may be a single number, too.
    """
    return key != "step" and torch.is_tensor(value) and tuple(value.shape) == tuple(shape)
