"""Which gradients a backward pass brings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ringreduce.data_parallel.bucket import Slot

__all__ = ["AnyUsage", "FindUnused", "StaticGraph", "Usage", "tensors_in"]


class Usage:
    """Every parameter's gradient comes once in each backward pass.

    Attributes:
        asks: whether the ranks are to tell each other at the end of a pass which parameters they have used.
        hint: what to do about a gradient that does not come.
        again: what to do about one that comes once more than expected.
    """

    asks = False
    hint = " (find_unused_parameters=True allows it)"
    again = ". Where each step does so (re-entrant checkpointing), static_graph=True helps"

    def end_forward(self, outputs: Sequence[Any], slots: Sequence[Slot]) -> None:
        """A forward pass has returned these tensors that need gradients."""

    def begin(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """A backward pass begins: whose gradients it will not bring."""
        return ()

    def reaches_nothing(self, slots: Sequence[Slot]) -> bool:
        """Whether the backward pass of the last outputs will bring no gradient at all."""
        return False

    def allows_missing(self) -> bool:
        return False

    def agreed(self, used: set[int] | None) -> set[int]:
        """The ranks have told each other which parameters some rank has used; None: they were not asked.

        Returns:
            The numbers of parameters that get a gradient even where this rank has none.
        """
        return used or set()

    def passed(self, slots: Sequence[Slot]) -> None:
        """A backward pass of this rank has gone well on all ranks."""


class AnyUsage(Usage):
    """A parameter without a gradient counts as zeros."""

    asks = True
    hint = ""

    def allows_missing(self) -> bool:
        return True


class FindUnused(AnyUsage):
    """Which gradients do not come is found out by a walk through the graph after each forward pass."""

    def __init__(self) -> None:
        # Where outputs are not found, in objects of unknown kinds, it shows at the end what has been used.
        self._skipped: set[int] | None = None  # numbers of parameters that the outputs do not depend on

    def end_forward(self, outputs: Sequence[Any], slots: Sequence[Slot]) -> None:
        reached = parameters_reached(outputs)
        skipped = {slot.number for slot in slots if outputs and id(slot.parameter) not in reached}
        self._skipped = skipped if self._skipped is None else self._skipped & skipped

    def begin(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        skipped, self._skipped = self._skipped or set(), None
        return [slot for slot in slots if slot.number in skipped]

    def reaches_nothing(self, slots: Sequence[Slot]) -> bool:
        return self._skipped is not None and len(self._skipped) == len(slots)


class StaticGraph(Usage):
    """The first backward pass shows which gradients come, and how often; all others are like it."""

    hint = " (the graph is not static)"
    again = " (the graph is not static)"

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._used: set[int] | None = None
        self._counting = True
        for slot in slots:
            slot.expected = math.inf

    @property
    def asks(self) -> bool:  # type: ignore[override]
        return self._used is None

    def begin(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        return [slot for slot in slots if slot.expected == 0]

    def allows_missing(self) -> bool:
        return self._counting

    def agreed(self, used: set[int] | None) -> set[int]:
        if used is not None:
            self._used = used
        return self._used or set()

    def passed(self, slots: Sequence[Slot]) -> None:
        if self._counting:
            self._counting = False
            for slot in slots:
                slot.expected = slot.came


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in nested mappings, lists, tuples, sets and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def parameters_reached(tensors: Sequence[Any]) -> set[int]:
    """The id() of each leaf tensor that a backward pass from these tensors would give a gradient."""
    found = {id(tensor) for tensor in tensors if tensor.grad_fn is None}
    nodes = [tensor.grad_fn for tensor in tensors]
    seen = {None}  # keeps the nodes alive, so that each stays the same object
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if not node.next_functions and hasattr(node, "variable"):  # it accumulates a leaf's gradient
            found.add(id(node.variable))
        nodes.extend(following for following, _ in node.next_functions)
    return found
