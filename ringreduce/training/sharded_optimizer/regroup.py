"""Moves what ranks hold to where another group of ranks wants it, each piece straight from memory to memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.training.foundation.optimizer_state import Kinds
from ringreduce.training.foundation.transfer import as_bytes, move
from ringreduce.training.sharded_optimizer.division import Division, owners_of_copies

__all__ = ["StateLost", "mend", "move_states", "part_of"]

Ranges = list[list[tuple[int, int, int]]]  # by owner: parameters, and the range of the elements that it owns


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
            raise StateLost(_lost("ShardedOptimizer", before, size_before, copies))
        for share in division.shares:
            for rank in torn:
                if rank != holder and comm.rank in (rank, holder):
                    piece = as_bytes(share.parameters_of(owner))
                    (incoming if comm.rank == rank else outgoing).append((rank + holder - comm.rank, piece))
    move(comm, outgoing, incoming)


class Holder(Protocol):
    """What ranks hold: parts of all parameters. A rank has its own part, and copies of others'."""

    def table(self, size: int) -> Ranges:
        """Returns what each rank of a group of a size owns."""

    def kinds(self) -> Kinds:
        """Returns what this rank's own part has for each parameter."""

    def make_states(self, kinds: Kinds) -> None:
        """Makes memory for the states of all parts that this rank holds."""

    def held(self, owner: int, number: int) -> tuple[int, dict[str, Any]]:
        """Returns, for a parameter in an owner's part, the first element, and the tensors of the elements by key."""


def move_states(
    comm: Communicator, old: Holder, new: Holder, before: Sequence[int | None], size_before: int, copies: int,
    name: str,
) -> None:  # fmt: skip
    """Gives all parts of ``new`` what belongs to them, from the ranks that have it in ``old``. Every rank must call it.

    Raises:
        StateLost: a part was on lost ranks only. Every rank raises it.
    """
    kinds: Kinds = {}
    for found in comm.all_gather_object(old.kinds() if before[comm.rank] is not None else {}):
        kinds |= found
    having = holders(before, size_before, copies)
    if kinds and None in having:
        raise StateLost(_lost(name, before, size_before, copies))
    if new is not old:
        new.make_states(kinds)
    outgoing: list[tuple[int, Any]] = []
    incoming: list[tuple[int, Any]] = []
    for number, first, last, owner, next_owner in _crossings(
        old.table(size_before) if size_before else [], new.table(comm.size)
    ):
        source = having[owner]
        for dest in range(comm.size):
            if next_owner not in owners_of_copies(dest, comm.size, copies) or comm.rank not in (source, dest):
                continue
            for key, kind in sorted(kinds.get(number, {}).items()):
                if not isinstance(kind, torch.dtype):
                    continue
                mine = part_of(old.held(owner, number), key, first, last) if comm.rank == source else None
                place = part_of(new.held(next_owner, number), key, first, last) if comm.rank == dest else None
                if mine is not None and place is not None:
                    place.copy_(mine)
                elif mine is not None:
                    outgoing.append((dest, mine))
                else:
                    incoming.append((int(source or 0), place))
    move(comm, outgoing, incoming)


def _lost(name: str, before: Sequence[int | None], size_before: int, copies: int) -> str:
    gone = [str(rank) for rank, holder in enumerate(holders(before, size_before, copies)) if holder is None]
    return (
        f"{name}: the state of rank{'s' * (len(gone) > 1)} {', '.join(gone)} of {size_before} is lost with all of its "
        f"{copies} copies. Continue from a checkpoint, or use more copies"
    )


def _crossings(old: Ranges, new: Ranges) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields each range of a parameter's elements with one owner before and one now: number, first, last, owners."""
    former: dict[int, list[tuple[int, int, int]]] = {}
    for owner, owned in enumerate(old):
        for number, first, last in owned:
            former.setdefault(number, []).append((first, last, owner))
    for next_owner, owned in enumerate(new):
        for number, first, last in owned:
            for other_first, other_last, owner in former.get(number, ()):
                begin, end = max(first, other_first), min(last, other_last)
                if begin < end:
                    yield number, begin, end, owner, next_owner


def part_of(held: tuple[int, dict[str, Any]], key: str, first: int, last: int) -> Any:
    """Returns the memory of a range of a parameter's elements, as bytes."""
    begin, values = held
    size = values[key].element_size()
    return as_bytes(values[key])[(first - begin) * size : (last - begin) * size]
