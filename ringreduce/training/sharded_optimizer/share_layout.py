"""Assigns parameters to buckets, and their parts to ranks, in the same way on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.agreement import check_same, kind_of
from ringreduce.training.foundation.assignment import make_buckets
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.kinds import Cut
from ringreduce.training.foundation.placement import Placement, balanced
from ringreduce.training.foundation.shares import ALIGNMENT, Share, arrange, ranges

__all__ = ["ShareLayout"]

Range = tuple[int, int, int]  # a parameter's number, and the range of its elements


class ShareLayout:
    """Makes shares of parameters.

    Args:
        limit: the bytes of a bucket.
        settings: values that must be the same on all ranks, too.

    Attributes:
        batches: the arguments of all calls of :meth:`make`.
    """

    def __init__(self, comm: Communicator, cut: Cut, limit: float, settings: dict[str, Any]) -> None:
        self._comm, self._cut, self._limit, self._settings = comm, cut, limit, settings
        self._loads = [0] * comm.size  # bytes of whole parameters that each rank owns
        self._made = 0
        self.batches: list[tuple[Sequence[Slot], dict[Slot, int]]] = []

    def make(self, slots: Sequence[Slot], groups: dict[Slot, int]) -> list[Share]:
        """Copies parameters into the memory of new buckets.

        The buckets are in reverse order of the parameters, because a backward pass computes gradients in that order.

        Args:
            groups: the number of each parameter's group.
        """
        self.batches.append((slots, groups))
        shares = []
        for bucket, placement in self._arranged(slots, self._loads):
            bucket.index, self._made = self._made, self._made + 1
            shares.append(Share(bucket, groups, placement, self._comm, self._cut == "elements"))
        return shares

    def on(self, comm: Communicator) -> ShareLayout:
        """Returns a layout with the same rules for another group, which has made no shares yet."""
        return ShareLayout(comm, self._cut, self._limit, self._settings)

    def check(self, slots: Sequence[Slot], settings: dict[str, Any]) -> None:
        """Compares all ranks' parameters and settings. Every rank must call it.

        Raises:
            Error: the ranks' parameters or settings differ.
        """
        check_same(self._comm, self.described(slots, settings), "ShardedOptimizer: the ranks' parameters")

    def described(self, slots: Sequence[Slot], settings: dict[str, Any]) -> dict[str, str]:
        """Returns what must be the same on all ranks, by name."""
        found = {name: repr(value) for name, value in {**self._settings, **settings}.items()}
        return found | {f"parameter {slot.number}": kind_of(slot.parameter) for slot in slots}

    def table(self, world: int) -> list[list[Range]]:
        """Returns what each rank of a group of another size would own of the parameters of all shares made so far."""
        owned: list[list[Range]] = [[] for _ in range(world)]
        loads = [0] * world
        for slots, _ in self.batches:
            fresh = [Slot(slot.number, slot.name, slot.parameter) for slot in slots]
            for bucket, placement in self._arranged(fresh, loads):
                for rank in range(world):
                    owned[rank] += [
                        (s.number, first, last) for s, first, last in ranges(bucket, placement, rank)
                    ]
        return owned

    def _arranged(self, slots: Sequence[Slot], loads: list[int]) -> Iterator[tuple[Bucket, Placement]]:
        owners = balanced([slot.parameter.nbytes for slot in slots], loads, ALIGNMENT)
        owner_of = dict(zip(slots, owners, strict=True))
        for bucket in make_buckets(slots[::-1], self._limit, self._limit):
            yield bucket, arrange(bucket, self._cut, [owner_of[slot] for slot in bucket.slots], len(loads))
