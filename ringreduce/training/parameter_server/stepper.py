"""The optimizer of a shard: it steps on gradients that come as messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ringreduce.training.foundation.bucket import shaped_like
from ringreduce.training.foundation.optimizer_state import cut
from ringreduce.training.foundation.rows import averaged_rows
from ringreduce.training.foundation.shares import Piece
from ringreduce.training.parameter_server.server_layout import ServerLayout
from ringreduce.training.parameter_server.wire import Message, MessageKind

__all__ = ["ShardSettings", "Stepper", "averaged", "number_names"]


@dataclass(frozen=True)
class ShardSettings:
    """The settings that all shards share.

    Attributes:
        optimizer: makes an optimizer of a list of parameter groups.
        groups: the options of each parameter group.
        group_of: the number of each parameter's group, by the number of its slot.
        only_its_rows: whether a step on a sparse gradient changes only the gradient's rows.
        compensation, decay: of delayed gradients; see ParameterServer.
    """

    workers: int
    staleness: int | None
    optimizer: Callable[[list[dict[str, Any]]], Any]
    groups: list[dict[str, Any]]
    group_of: list[int]
    only_its_rows: bool = True
    compensation: float | None = None
    decay: float | None = None

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0


def number_names(options: dict[str, Any]) -> list[str]:
    """Returns the names of a parameter group's numbers, which schedulers may change and which travel therefore."""
    return [name for name, value in options.items() if type(value) in (int, float)]


class Stepper:
    """Steps an optimizer on a shard's pieces of the parameters.

    Args:
        values, rows: the shard's memory of each part and table, which the optimizer changes.
    """

    def __init__(
        self,
        layout: ServerLayout,
        shard: int,
        settings: ShardSettings,
        values: Sequence[Any],
        rows: Sequence[Any],
    ) -> None:
        self._settings = settings
        self._cuts = layout.cut == "elements"
        self._tables: list[tuple[Piece, int]] = []  # with the number of the table
        self._pieces: list[
            tuple[Piece, int, int]
        ] = []  # with the number of the part, and the begin in its range
        for place, (part, memory) in enumerate(zip(layout.parts, values, strict=True)):
            first, last = part.ranges[shard]
            for slot in part.bucket.slots:
                begin, end = max(slot.start, first), min(slot.start + slot.parameter.numel(), last)
                if begin < end:
                    own = self._shaped(slot.parameter, memory[begin - first : end - first])
                    piece = Piece(
                        slot, settings.group_of[slot.number], begin - slot.start, end - slot.start, own
                    )
                    self._pieces.append((piece, place, begin - first))
        for place, (table, memory) in enumerate(zip(layout.tables, rows, strict=True)):
            if len(memory):
                begin, end = (row * table.row_size for row in table.ranges[shard])
                piece = Piece(table.slot, settings.group_of[table.slot.number], begin, end, memory)
                self._tables.append((piece, place))
        self._all = [piece for piece, _, _ in self._pieces] + [piece for piece, _ in self._tables]
        self._all.sort(key=lambda piece: piece.slot.number)
        self.optimizer = settings.optimizer(
            [
                {**options, "params": [piece.parameter for piece in self._all if piece.group == number]}
                for number, options in enumerate(settings.groups)
            ]
        )

    def _shaped(self, like: Any, flat: Any) -> Any:
        return flat if self._cuts else shaped_like(like, flat)

    def step(self, message: Message) -> None:
        """Steps with a message's gradients and options."""
        numbers = iter(message.options)
        for group, known in zip(self.optimizer.param_groups, self._settings.groups, strict=True):
            group.update((name, _like(known[name], next(numbers))) for name in number_names(known))
        for piece, place, begin in self._pieces:
            if message.used[piece.slot.number]:
                assert message.dense is not None
                flat = message.dense[place][begin : begin + piece.last - piece.first]
                piece.parameter.grad = self._shaped(piece.slot.parameter, flat)
        for piece, place in self._tables:
            if message.used[piece.slot.number]:
                indices, values = message.rows[place]
                piece.parameter.grad = torch.sparse_coo_tensor(
                    indices[None], values, piece.parameter.shape, is_coalesced=True, check_invariants=False
                )
        self.optimizer.step()
        for piece in self._all:
            piece.parameter.grad = None

    # --- its state -----------------------------------------------------------------------------------------

    def state(self) -> list[tuple[int, int, int, dict[str, Any]]]:
        """Returns the state of each piece that has one, after the parameter's number and the range of elements."""
        tables = {piece for piece, _ in self._tables}
        return [
            (
                piece.slot.number,
                piece.first,
                piece.last,
                _flat(piece, state) if piece in tables else dict(state),
            )
            for piece in self._all
            if (state := self.optimizer.state.get(piece.parameter))
        ]

    def load(self, states: dict[int, dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
        """Loads the states of whole parameters, by number, and the options of the groups."""
        inside = self.optimizer.state_dict()["param_groups"]
        state = {}
        for number, group in enumerate(inside):
            pieces = [piece for piece in self._all if piece.group == number]
            for place, piece in zip(group["params"], pieces, strict=True):
                if piece.slot.number in states:
                    own = cut(piece, states[piece.slot.number])
                    state[place] = {key: _shaped_like_piece(piece, value) for key, value in own.items()}
            group.update(groups[number])
        self.optimizer.load_state_dict({"state": state, "param_groups": inside})


def _like(known: float, number: float) -> float:
    """Returns an int again if it was one before it travelled. Optimizers may want one."""
    return int(number) if type(known) is int and number.is_integer() else number


def _flat(piece: Piece, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of a table's rows, with one-dimensional values for each element."""
    return {
        key: value.to_dense().flatten()
        if torch.is_tensor(value) and value.shape == piece.parameter.shape
        else value
        for key, value in state.items()
    }


def _shaped_like_piece(piece: Piece, value: Any) -> Any:
    fits = torch.is_tensor(value) and value.shape == (piece.last - piece.first,)
    return value.view(piece.parameter.shape) if fits else value


def averaged(messages: Sequence[Message]) -> Message:
    """Returns a message with the averages of all gradients, added in this order. It takes the first one's memory."""
    first, *others = messages
    dense = []
    for place, own in enumerate(first.dense or ()):
        wide = own.float() if own.itemsize == 2 else own  # 16-bit floats are rounded once
        for other in others:
            assert other.dense is not None
            wide.add_(other.dense[place])
        dense.append(own.copy_(wide.mul_(1 / len(messages))))
    rows = [averaged_rows(parts, len(parts)) for parts in zip(*(m.rows for m in messages), strict=True)]
    used = [any(flags) for flags in zip(*(message.used for message in messages), strict=True)]
    return Message(MessageKind.PUSH, options=first.options, used=used, dense=dense, rows=rows)
