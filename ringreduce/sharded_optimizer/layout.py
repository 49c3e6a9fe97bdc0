"""Assigns parameters to buckets, and their parts to ranks, in the same way on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.agreement import check_same, kind_of
from ringreduce.data_parallel.assignment import make_buckets
from ringreduce.data_parallel.bucket import Bucket, Slot
from ringreduce.sharded_optimizer.kinds import Cut
from ringreduce.sharded_optimizer.placement import Placement, balanced, by_elements, by_parameters
from ringreduce.sharded_optimizer.shares import ALIGNMENT, Share

__all__ = ["Layout"]


class Layout:
    """Makes shares of parameters.

    Args:
        limit: the bytes of a bucket.
        settings: values that must be the same on all ranks, too.
    """

    def __init__(self, comm: Communicator, cut: Cut, limit: float, settings: dict[str, Any]) -> None:
        self._comm, self._cut, self._limit, self._settings = comm, cut, limit, settings
        self._loads = [0] * comm.size  # bytes of whole parameters that each rank owns
        self._made = 0

    def make(self, slots: Sequence[Slot], groups: dict[Slot, int], settings: dict[str, Any]) -> list[Share]:
        """Moves parameters into new buckets, and gives them rank 0's values. Every rank must call it.

        The buckets are in reverse order of the parameters, because a backward pass computes gradients in that order.

        Args:
            groups: the number of each parameter's group.
            settings: the settings of these groups, which must be the same on all ranks, too.

        Raises:
            Error: the ranks' parameters or settings differ.
        """
        described = {name: repr(value) for name, value in {**self._settings, **settings}.items()}
        described |= {f"parameter {slot.number}": kind_of(slot.parameter) for slot in slots}
        check_same(self._comm, described, "ShardedOptimizer: the ranks' parameters")
        owners = balanced([slot.parameter.nbytes for slot in slots], self._loads, ALIGNMENT)
        owner_of = dict(zip(slots, owners, strict=True))
        shares = []
        for bucket in make_buckets(slots[::-1], self._limit, self._limit):
            bucket.index, self._made = self._made, self._made + 1
            placement = self._placement(bucket, [owner_of[slot] for slot in bucket.slots])
            shares.append(Share(bucket, groups, placement, self._comm, self._cut == "elements"))
        return shares

    def _placement(self, bucket: Bucket, owners: Sequence[int]) -> Placement:
        sizes = [slot.parameter.numel() for slot in bucket.slots]
        alignment = max(ALIGNMENT // bucket.like.element_size(), 1)
        if self._cut == "elements":
            return by_elements(sizes, self._comm.size, alignment)
        return by_parameters(sizes, owners, self._comm.size, alignment)
