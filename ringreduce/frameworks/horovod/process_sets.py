"""Process sets: groups of ranks that run operations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from ringreduce.frameworks.horovod.driver import Driver

__all__ = ["ProcessSet", "global_process_set", "integers"]


def integers(values: Any, name: str) -> list[int]:
    """Returns integers of any type as Python's. Raises ValueError if one is none: floats are not rounded."""
    try:
        return [index(value) for value in values]
    except TypeError:
        raise ValueError(f"{name} must be integers, not {values}") from None


class ProcessSet:
    """A set of ranks, for the ``process_set`` argument of operations.

    Args:
        ranks: the ranks, or an mpi4py communicator of them.

    Attributes:
        process_set_id: the number of the set, from ``hvd.init(process_sets=...)`` or ``hvd.add_process_set`` on; None
            before that and after ``hvd.remove_process_set``.
        ranks: the ranks in ascending order.
        mpi_comm: the communicator that was given, or None.
    """

    def __init__(self, ranks: Any) -> None:
        is_sequence = isinstance(ranks, Sequence) or not hasattr(ranks, "allgather")
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None if is_sequence else ranks
        self.ranks: list[int] = sorted(set(integers(ranks, "ranks of a process set"))) if is_sequence else []
        self._rank = -1  # this process's rank in the whole job
        self._driver: Driver | None = None

    def included(self) -> bool:
        """Returns whether this process belongs to the set."""
        self._check()
        return self._driver is not None

    def rank(self) -> int:
        """Returns the place of this process in the set.

        Raises:
            ValueError: the process does not belong to the set.
        """
        self.driver()
        return self.ranks.index(self._rank)

    def size(self) -> int:
        """Returns the number of ranks in the set."""
        self._check()
        return len(self.ranks)

    def place_of(self, rank: int, name: str) -> int:
        """Returns the place in the set of a rank of the job. Raises ValueError if it is not in the set."""
        if rank not in self.ranks:
            raise ValueError(f"{name} must be one of the ranks {self.ranks} of the process set, not {rank!r}")
        return self.ranks.index(rank)

    def driver(self) -> Driver:
        """Returns what runs the set's operations on this rank.

        Raises:
            ValueError: the set is not registered, or this process does not belong to it.
        """
        if self._driver is None:
            self._check()
            raise ValueError(f"rank {self._rank} does not belong to the process set of ranks {self.ranks}")
        return self._driver

    def _check(self) -> None:
        if self.process_set_id is None:
            what = (
                "call hvd.init() first"
                if self is global_process_set
                else "the process set is not registered: pass it to hvd.init(process_sets=...) or hvd.add_process_set"
            )
            raise ValueError(what)

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )


global_process_set = ProcessSet([])
