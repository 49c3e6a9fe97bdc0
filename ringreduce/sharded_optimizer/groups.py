"""Parameter groups' options, which the optimizer outside and the one inside share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["copy_options", "options"]

MEMBERS = {"params", "param_names"}


def options(group: dict[str, Any]) -> dict[str, Any]:
    """All of a group but its parameters."""
    return {key: value for key, value in group.items() if key not in MEMBERS}


def copy_options(sources: Sequence[dict[str, Any]], targets: Sequence[dict[str, Any]]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.update(options(source))
