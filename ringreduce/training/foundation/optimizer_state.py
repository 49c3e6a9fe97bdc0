"""Joins optimizer states from all ranks' pieces, and cuts them into this rank's pieces."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.bucket import shaped_like
from ringreduce.training.foundation.shares import Piece, Share

__all__ = [
    "Kinds",
    "cut",
    "gather_share",
    "is_cut",
    "joined",
    "numbered",
    "numbers_in",
    "on_cpu",
    "state_like",
]

State = dict[str, Any]  # the inner optimizer's state of one parameter or piece
Part = tuple[int, int, State]  # a range of the parameter's elements, and their state
Kinds = dict[int, State]  # by parameter and key: the dtype of a value that is cut, or any other value


def gather_share(
    comm: Communicator, share: Share, pieces: Sequence[Piece], states: dict[Any, State], root: int | None
) -> dict[int, State]:
    """Returns the whole states of a bucket's parameters, by number and on the CPU.

    Args:
        pieces: this rank's pieces of the share.
        states: this rank's states, by piece.
        root: the rank that gets the states; the others get an empty dict. None sends them to all ranks.
    """
    own = {
        piece.slot.number: (piece.first, piece.last, on_cpu(states[piece.parameter]))
        for piece in pieces
        if piece.parameter in states
    }
    everybodys = comm.all_gather_object(own) if root is None else comm.gather_object(own, root) or []
    found = {}
    for slot in share.bucket.slots:
        parts = [parts[slot.number] for parts in everybodys if slot.number in parts]
        if parts:
            found[slot.number] = joined(slot.parameter, parts)
    return found


def on_cpu(state: State, copy: bool = False) -> State:
    """Returns a state with its tensors on the CPU, and with copy=True in memory of their own."""
    return {
        key: value.to("cpu", copy=copy) if torch.is_tensor(value) else value for key, value in state.items()
    }


def joined(parameter: Any, parts: list[Part]) -> State:
    """Joins the states of a parameter's pieces."""
    _, _, some = parts[0]
    return {key: _joined_value(parameter, key, parts) for key in some}


def _joined_value(parameter: Any, key: str, parts: list[Part]) -> Any:
    first, last, state = parts[0]
    value = state[key]
    if not is_cut(key, value, (last - first,)):
        return value
    flat = torch.empty(parameter.numel(), dtype=value.dtype)
    for first, last, state in parts:
        flat[first:last] = state[key]
    return shaped_like(parameter, flat)


def cut(piece: Piece, state: State) -> State:
    """Returns this rank's piece of a parameter's whole state. It is a copy, because steps change it."""
    shape = piece.slot.parameter.shape
    return {
        key: piece.of(value).clone() if is_cut(key, value, shape) else copy.deepcopy(value)
        for key, value in state.items()
    }


def is_cut(key: str, value: Any, shape: tuple[int, ...]) -> bool:
    """Returns whether a value of the state has one number for each element of its parameter or piece.

    "step" never has: it is the number of steps in torch's optimizers, but a parameter may be a single number, too.
    """
    return key != "step" and torch.is_tensor(value) and tuple(value.shape) == tuple(shape)


def state_like(parameter: Any, kinds: State) -> State:
    """Returns a state of these kinds, whose tensors are not filled yet."""
    return {
        key: torch.empty_like(parameter, dtype=kind, requires_grad=False)
        if isinstance(kind, torch.dtype)
        else copy.deepcopy(kind)
        for key, kind in kinds.items()
    }


def numbered(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns parameter groups for a state_dict, which has numbers for parameters."""
    found, begin = [], 0
    for group in groups:
        end = begin + len(group["params"])
        found.append({**group, "params": list(range(begin, end))})
        begin = end
    return found


def numbers_in(saved: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the number that a state_dict has for each parameter, in the order of the groups.

    Raises:
        ValueError: the number or the lengths of the saved groups differ from those of the groups.
    """
    lengths = [[len(group["params"]) for group in each] for each in (groups, saved)]
    if lengths[0] != lengths[1]:
        raise ValueError(f"state_dict has groups of {lengths[1]} parameters, not of {lengths[0]}")
    return [number for group in saved for number in group["params"]]
