"""Expectations of which gradients a backward pass computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ringreduce.training.foundation.bucket import Slot

__all__ = ["AnyUsage", "FindUnused", "StaticGraph", "Usage", "tensors_in"]


class Usage:
    """Expects every parameter's gradient exactly once in each backward pass.

    Attributes:
        asks: whether the ranks exchange, at the end of a pass, which parameters they have used.
        hint: the advice of an error message about a missing gradient.
        again: the advice of an error message about a gradient that comes once too often.
    """

    asks = False
    hint = " (find_unused_parameters=True allows it)"
    again = ". If every step does this (re-entrant checkpointing), static_graph=True helps"

    def end_forward(self, outputs: Sequence[Any], slots: Sequence[Slot]) -> None:
        """Called with the outputs of a forward pass that need gradients."""

    def begin(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Called at the start of a backward pass. Returns the slots whose gradients it will not compute."""
        return ()

    def reaches_nothing(self, slots: Sequence[Slot]) -> bool:
        """Returns whether the backward pass of the last outputs will compute no gradient at all."""
        return False

    def allows_missing(self) -> bool:
        return False

    def agreed(self, used: set[int] | None) -> set[int]:
        """Called with the parameters that some rank has used, or None if the ranks did not exchange them.

        Returns:
            The numbers of parameters that get a gradient even if this rank has none.
        """
        return used or set()

    def passed(self, slots: Sequence[Slot]) -> None:
        """Called after a backward pass that succeeded on all ranks, if this rank had data."""


class AnyUsage(Usage):
    """Accepts missing gradients: they count as zeros."""

    asks = True
    hint = ""

    def allows_missing(self) -> bool:
        return True


class FindUnused(AnyUsage):
    """Walks the graph after each forward pass to find the gradients that will not come."""

    def __init__(self) -> None:
        # The numbers of parameters that the outputs do not depend on. Empty if the outputs are in objects of unknown
        # types; then only the end of the pass shows which parameters were used.
        self._skipped: set[int] | None = None

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
    """Learns from the first backward pass which gradients come, and how often. All others must be the same."""

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
    """Yields the tensors in nested mappings, lists, tuples, sets and dataclasses."""
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
    """Returns the id() of each leaf tensor that a backward pass from these tensors gives a gradient."""
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
