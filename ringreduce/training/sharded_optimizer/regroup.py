"""Moves the optimizer's state to the ranks of another group, each piece straight from memory to memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.training.foundation.optimizer_state import is_cut
from ringreduce.training.foundation.part import Part
from ringreduce.training.foundation.shares import Piece
from ringreduce.training.foundation.transfer import as_bytes, move
from ringreduce.training.sharded_optimizer.division import Division, owners_of_copies

__all__ = ["StateLost", "mend", "move_states"]

Kinds = dict[
    int, dict[str, Any]
]  # by parameter and key: the dtype if the value is cut like it, else the value


class StateLost(Error):
    """A part of the state was on lost ranks only."""


def holders(before: Sequence[int | None], size_before: int, copies: int) -> list[int | None]:
    """Returns, for each rank of the former group, a rank that has its part now. None if there is no such rank.

    Args:
        before: the former rank of each rank, or None.
    """
    now = {old: rank for rank, old in enumerate(before) if old is not None}
    found: list[int | None] = []
    for owner in range(size_before):
        having = ((owner + distance) % size_before for distance in range(min(copies, size_before - 1) + 1))
        found.append(next((now[old] for old in having if old in now), None))
    return found


def mend(
    division: Division, comm: Communicator, before: Sequence[int | None], size_before: int, copies: int,
    torn: Sequence[int],
) -> None:  # fmt: skip
    """Gives the ranks in ``torn`` the parameters of all parts, from the ranks that have updated them."""
    outgoing: list[tuple[int, Any]] = []
    incoming: list[tuple[int, Any]] = []
    for owner, holder in enumerate(holders(before, size_before, copies)):
        if holder is None:
            raise StateLost(_lost(before, size_before, copies))
        for share in division.shares:
            for rank in torn:
                if rank != holder and comm.rank in (rank, holder):
                    piece = as_bytes(share.parameters_of(owner))
                    (incoming if comm.rank == rank else outgoing).append((rank + holder - comm.rank, piece))
    move(comm, outgoing, incoming)


def move_states(
    old: Division, new: Division, before: Sequence[int | None], size_before: int, copies: int
) -> None:
    """Gives the parts of ``new`` their states, from the ranks that have them in ``old``. Every rank must call it.

    Raises:
        StateLost: a part was on lost ranks only. Every rank raises it.
    """
    comm = new.comm
    kinds: Kinds = {}
    was_there = before[comm.rank] is not None
    for found in comm.all_gather_object(_kinds(old) if was_there else {}):
        kinds |= found
    having = holders(before, size_before, copies)
    if kinds and None in having:
        raise StateLost(_lost(before, size_before, copies))
    for part in new.parts:
        _make_states(part, kinds)
    theirs = {part.rank: _by_number(part) for part in old.parts} if was_there else {}
    ours = {part.rank: _by_number(part) for part in new.parts}
    outgoing: list[tuple[int, Any]] = []
    incoming: list[tuple[int, Any]] = []
    for number, first, last, owner, next_owner in _crossings(old, new, size_before):
        source = having[owner]
        for dest in range(comm.size):
            if next_owner not in owners_of_copies(dest, comm.size, copies) or comm.rank not in (source, dest):
                continue
            for key, kind in sorted(kinds.get(number, {}).items()):
                if not isinstance(kind, torch.dtype):
                    continue
                mine = (
                    _view(old.parts, theirs, owner, number, key, first, last) if comm.rank == source else None
                )
                place = (
                    _view(new.parts, ours, next_owner, number, key, first, last)
                    if comm.rank == dest
                    else None
                )
                if mine is not None and place is not None:
                    place.copy_(mine)
                elif mine is not None:
                    outgoing.append((dest, mine))
                else:
                    incoming.append((int(source or 0), place))
    move(comm, outgoing, incoming)


def _lost(before: Sequence[int | None], size_before: int, copies: int) -> str:
    gone = [str(rank) for rank, holder in enumerate(holders(before, size_before, copies)) if holder is None]
    return (
        f"ShardedOptimizer: the state of rank{'s' * (len(gone) > 1)} {', '.join(gone)} of {size_before} is lost with "
        f"all of its {copies} copies. Continue from a checkpoint, or use more copies"
    )


def _kinds(division: Division) -> Kinds:
    return {
        piece.slot.number: {
            key: value.dtype if is_cut(key, value, tuple(piece.parameter.shape)) else value
            for key, value in state.items()
        }
        for part in division.parts
        for piece, state in part.states()
    }


def _make_states(part: Part, kinds: Kinds) -> None:
    for piece in part.pieces:
        if piece.slot.number in kinds:
            part.inner.state[piece.parameter] = {
                key: torch.empty_like(piece.parameter, dtype=kind, requires_grad=False)
                if isinstance(kind, torch.dtype)
                else copy.deepcopy(kind)
                for key, kind in kinds[piece.slot.number].items()
            }


def _by_number(part: Part) -> dict[int, Piece]:
    return {piece.slot.number: piece for piece in part.pieces}


def _crossings(old: Division, new: Division, size_before: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields each range of a parameter's elements with one owner before and one now: number, first, last, owners."""
    former: dict[int, list[tuple[int, int, int]]] = {}
    for owner, owned in enumerate(old.layout.table(size_before) if size_before else []):
        for number, first, last in owned:
            former.setdefault(number, []).append((first, last, owner))
    for next_owner, owned in enumerate(new.layout.table(new.comm.size)):
        for number, first, last in owned:
            for other_first, other_last, owner in former.get(number, ()):
                begin, end = max(first, other_first), min(last, other_last)
                if begin < end:
                    yield number, begin, end, owner, next_owner


def _view(
    parts: Sequence[Part], pieces: dict[int, dict[int, Piece]], owner: int, number: int, key: str, first: int, last: int
) -> Any:  # fmt: skip
    """Returns the bytes of a range of a parameter's elements, in a state of the part of an owner."""
    part = next(part for part in parts if part.rank == owner)
    piece = pieces[owner][number]
    value = part.inner.state[piece.parameter][key]
    size = value.element_size()
    return as_bytes(value)[(first - piece.first) * size : (last - piece.first) * size]
