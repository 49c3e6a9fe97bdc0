"""Joins the states of all shards' optimizers to that of one process, and finds each parameter's in such a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ringreduce.training.foundation.optimizer_state import joined, numbered, numbers_in
from ringreduce.training.parameter_server.server_layout import ServerLayout

__all__ = ["states_of", "whole_state"]


def whole_state(
    layout: ServerLayout, shards: Iterable[list[Any]], groups: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the state_dict of one process.

    Args:
        shards: the state of each shard's pieces; see Stepper.state.
        groups: the parameter groups.
    """
    parts: dict[int, list[Any]] = {}
    for pieces in shards:
        for number, first, last, state in pieces:
            parts.setdefault(number, []).append((first, last, state))
    places = _places(layout, groups)
    found = {places[number]: joined(layout.slots[number].parameter, each) for number, each in parts.items()}
    return {"state": dict(sorted(found.items())), "param_groups": numbered(groups)}


def states_of(
    layout: ServerLayout, state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Returns the state of each parameter that has one, by the number of its slot.

    Raises:
        ValueError: the groups of the state_dict are not those of the model.
    """
    numbers = numbers_in(state_dict["param_groups"], groups)
    state = state_dict["state"]
    places = _places(layout, groups)
    return {slot: state[numbers[place]] for slot, place in enumerate(places) if numbers[place] in state}


def _places(layout: ServerLayout, groups: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the place of each slot's parameter in the groups."""
    places = {id(p): place for place, p in enumerate(p for group in groups for p in group["params"])}
    return [places[id(slot.parameter)] for slot in layout.slots]
