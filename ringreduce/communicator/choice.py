"""The result of :meth:`Communicator.explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Choice", "TimeModel"]


class TimeModel(Protocol):
    """What predicts the times of algorithms, such as a :class:`ringreduce.model.Model`."""

    def ranking(self, nbytes: int, world: int, collective: str, ranks_per_host: int, /) -> Sequence[Any]:
        """Returns a prediction for each algorithm, the fastest first."""


class Choice:
    """The algorithm that ``algorithm="auto"`` picks, and why.

    Attributes:
        algorithm: the name of the algorithm.
        slice_bytes: the bytes of a round's messages that travel in one slice.
        reason: a sentence.
        predicted: a model's prediction for each algorithm, the fastest first. Its ``seconds`` are the sum of the parts
            in ``made_of``. Empty without a model.
    """

    __slots__ = ("algorithm", "predicted", "reason", "slice_bytes")

    def __init__(self, algorithm: str, slice_bytes: int, reason: str, predicted: Sequence[Any] = ()) -> None:
        self.algorithm = algorithm
        self.slice_bytes = slice_bytes
        self.reason = reason
        self.predicted = predicted

    def __repr__(self) -> str:
        return f"{self.algorithm} in slices of {self.slice_bytes} bytes: {self.reason}"
