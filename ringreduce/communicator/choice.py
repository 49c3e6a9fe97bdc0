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
        fabric: the provider, domain and card that carry messages between hosts, or why none does, as the log says it.
            Empty if no fabric was looked for.
        predicted: a model's prediction for each algorithm, the fastest first. Its ``seconds`` are the sum of the parts
            in ``made_of``. Empty without a model.
    """

    __slots__ = ("algorithm", "fabric", "predicted", "reason", "slice_bytes")

    def __init__(
        self, algorithm: str, slice_bytes: int, reason: str, fabric: str = "", predicted: Sequence[Any] = ()
    ) -> None:
        self.algorithm = algorithm
        self.slice_bytes = slice_bytes
        self.reason = reason
        self.fabric = fabric
        self.predicted = predicted

    def __repr__(self) -> str:
        text = f"{self.algorithm} in slices of {self.slice_bytes} bytes: {self.reason}"
        return f"{text}; {self.fabric}" if self.fabric else text
