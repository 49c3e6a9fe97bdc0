"""Sets of objects that are still alive, for several threads."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Living"]

T = TypeVar("T")


class Living(Generic[T]):
    """Remembers objects without keeping them alive.

    Threads may add objects, and drop the last reference to one, while others iterate. With weakref.WeakSet, the
    iteration could then raise RuntimeError.
    """

    def __init__(self) -> None:
        self._all: set[weakref.ref[T]] = set()

    def add(self, one: T) -> None:
        self._all.add(weakref.ref(one, self._all.discard))

    def discard(self, one: T) -> None:
        self._all.discard(weakref.ref(one))

    def clear(self) -> None:
        self._all.clear()

    def __contains__(self, one: T) -> bool:
        return weakref.ref(one) in self._all

    def __iter__(self) -> Iterator[T]:
        for each in list(self._all):  # which no other thread can interrupt
            if (one := each()) is not None:
                yield one
