"""What ``algorithm="auto"`` has picked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringreduce.simulate import Outcome

__all__ = ["Choice"]


class Choice:
    """What ``algorithm="auto"`` picks, and why.

    Attributes:
        algorithm: its name.
        slice_bytes: of one round's messages in one slice.
        reason: a sentence.
        predicted: what a model says of each algorithm, the fastest first: ``seconds``, and what they are ``made_of``.
            Empty without a model.
    """

    __slots__ = ("algorithm", "predicted", "reason", "slice_bytes")

    def __init__(
        self, algorithm: str, slice_bytes: int, reason: str, predicted: Sequence[Outcome] = ()
    ) -> None:
        self.algorithm = algorithm
        self.slice_bytes = slice_bytes
        self.reason = reason
        self.predicted = predicted

    def __repr__(self) -> str:
        return f"{self.algorithm} in slices of {self.slice_bytes} bytes: {self.reason}"
