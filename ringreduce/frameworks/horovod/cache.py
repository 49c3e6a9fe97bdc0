"""The cache of signatures: operations that ranks have run before are known by a number."""

from __future__ import annotations

from ringreduce.frameworks.horovod.request import Signature

__all__ = ["Cache"]


class Cache:
    """Numbers for names that have been used before. All ranks make the same changes in the same order."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: dict[str, tuple[int, Signature]] = {}  # the name used longest ago comes first
        self._names: list[str] = []  # by number
        self._free: list[int] = []

    def __len__(self) -> int:
        """The number of bits that a set of numbers needs."""
        return len(self._names)

    def number(self, name: str, signature: Signature) -> int | None:
        """Returns the number of a name that was last used with this signature, or None."""
        found = self._known.get(name)
        return found[0] if found is not None and found[1] == signature else None

    def use(self, number: int) -> tuple[str, Signature]:
        """Returns the name and signature of a number, and notes that they are used."""
        name = self._names[number]
        entry = self._known[name] = self._known.pop(name)
        return name, entry[1]

    def forget(self, name: str) -> int | None:
        """Removes a name. Returns its number, or None if there was none."""
        number, _ = self._known.pop(name, (None, None))
        if number is not None:
            self._free.append(number)
        return number

    def excess(self) -> str | None:
        """Returns the name to forget before another one is added: the one used longest ago, if the cache is full."""
        return next(iter(self._known)) if len(self._known) >= max(self._capacity, 1) else None

    def add(self, name: str, signature: Signature) -> None:
        """Gives a name a number, unless the capacity is 0."""
        if not self._capacity:
            return
        if not self._free:
            self._free.append(len(self._names))
            self._names.append("")
        number = self._free.pop()
        self._names[number] = name
        self._known[name] = number, signature
