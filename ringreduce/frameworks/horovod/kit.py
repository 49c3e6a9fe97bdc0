"""What the operations need of a framework's arrays. Each framework has one kit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

__all__ = ["Kit"]


class Kit(ABC):
    """Arrays in CPU memory. All kits' arrays have ``shape`` and ``nbytes``, slices and ``reshape``."""

    @abstractmethod
    def kind(self, x: Any) -> Hashable:
        """Returns the dtype as signatures have it: it can be pickled, and names the dtype as text."""

    @abstractmethod
    def empty(self, shape: Sequence[int], like: Any) -> Any:
        """Returns a new array for a result, of the dtype of ``like``."""

    @abstractmethod
    def zeros(self, shape: Sequence[int], kind: Any) -> Any:
        """Returns zeros of a dtype of a signature."""

    @abstractmethod
    def message(self, count: int, like: Any) -> Any:
        """Returns memory [count] of the dtype of ``like``, for messages."""

    @abstractmethod
    def numbers(self, values: Any) -> Any:
        """Returns a NumPy array as a result."""

    @abstractmethod
    def copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copies arrays to others of the same shapes."""

    @abstractmethod
    def is_float(self, x: Any) -> bool:
        """Returns whether the values are floats or complex numbers."""

    @abstractmethod
    def is_bool(self, x: Any) -> bool:
        """Returns whether the values are bools."""

    @abstractmethod
    def scaled(self, x: Any, factor: float) -> Any:
        """Returns x times factor, in x's dtype.

        Floats narrower than float32 are scaled in float32 and rounded once, integers in float64 and truncated.
        """

    @abstractmethod
    def quotient(self, x: Any, divisor: int) -> Any:
        """Returns integers divided by another one, rounded towards zero."""

    @abstractmethod
    def wide(self, x: Any) -> Any:
        """Returns x in a dtype of at least 32 bits."""

    @abstractmethod
    def dot(self, a: Any, b: Any) -> float:
        """Returns the sum of the products, added in float64."""
