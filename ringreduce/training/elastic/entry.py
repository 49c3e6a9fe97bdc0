"""The interface of a State's objects, also for when the ranks change."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ringreduce.communicator import Communicator

__all__ = ["Entry", "Membership"]


class Membership:
    """The ranks of a group, and what they were before.

    Attributes:
        comm: the group.
        before: for each rank, its rank when the state was last divided among the ranks. None for a newcomer.
        size_before: the number of ranks at that time.
        torn: the ranks whose parameters were being gathered when a rank was lost.
    """

    def __init__(
        self, comm: Communicator, before: list[int | None], size_before: int, torn: list[int]
    ) -> None:
        self.comm, self.before, self.size_before, self.torn = comm, before, size_before, torn


class Entry(ABC):
    """An object of a State.

    Attributes:
        name: its name in the State.
        value: the object.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def description(self) -> list[str]:
        """Returns what must be the same on a newcomer."""
        return [f"{self.name}: {type(self.value).__name__}"]

    @abstractmethod
    def tree(self) -> Any:
        """Returns the state that all ranks share: nested dicts and lists. Its tensors are not copies."""

    @abstractmethod
    def load(self, tree: Any) -> None:
        """Sets the state that all ranks share. Tensors that :meth:`own_tensors` gave are filled already."""

    def own_tensors(self) -> dict[str, Any] | None:
        """Returns the tensors into which another rank's state is received, or None to allocate new ones."""
        return None

    def keep(self) -> Any:
        """Returns a copy of what a step changes before its gradients are applied."""
        return copy.deepcopy(self.tree())

    def put_back(self, kept: Any) -> None:
        """Undoes changes since :meth:`keep`."""
        self.load(kept)

    def shard(self) -> Any:
        """Returns a copy of the part of the state that only this rank has: for a checkpoint."""
        return None

    def restore(self, tree: Any, shards: list[Any]) -> None:
        """Loads a checkpoint: the state that all ranks share, and the parts of all ranks that wrote it."""
        self.load(tree)

    def restored(self) -> None:
        """Continues from a checkpoint that every rank has loaded as a whole. All ranks call it."""

    def mend(self, now: Membership) -> None:
        """Makes parameters whole that a lost rank left half updated. All ranks call it."""

    def prepare(self, now: Membership) -> Callable[[], None] | None:
        """Divides the state among other ranks. All ranks call it.

        The state changes only when the returned function is called, so that a loss before then can be survived.
        """
        return None
