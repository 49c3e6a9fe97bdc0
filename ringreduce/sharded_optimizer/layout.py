"""Which parameters go into which bucket, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.agreement import check_same
from ringreduce.data_parallel.assignment import assign
from ringreduce.sharded_optimizer.bucket import ALIGNMENT, Bucket, Slot
from ringreduce.sharded_optimizer.kinds import Cut
from ringreduce.sharded_optimizer.placement import balanced, by_elements, by_parameters

__all__ = ["Layout"]


class Layout:
    """Makes buckets of parameters.

    Args:
        limit: bytes of a bucket.
        settings: what else has to be the same on all ranks.
    """

    def __init__(self, comm: Communicator, cut: Cut, limit: float, settings: dict[str, Any]) -> None:
        self._comm, self._cut, self._limit, self._settings = comm, cut, limit, settings
        self._loads = [0] * comm.size  # bytes of whole parameters that each rank owns

    def make(self, slots: Sequence[Slot], options: dict[str, Any]) -> list[Bucket]:
        """Moves parameters into new buckets; they get rank 0's values. Every rank must call it.

        The order is the reverse of the parameters': that in which a backward pass brings gradients.

        Args:
            options: of the parameters' groups, which have to be the same on all ranks, too.

        Raises:
            Error: the ranks' parameters or settings differ.
        """
        check_same(self._comm, self._described(slots, options), "ShardedOptimizer: the ranks' parameters")
        parameters = [slot.parameter for slot in slots]
        cut = assign(
            range(len(slots) - 1, -1, -1),
            [p.nbytes for p in parameters],
            [(p.dtype, p.device) for p in parameters],
            self._limit,
            self._limit,
        )
        owners = balanced([p.nbytes for p in parameters], self._loads, ALIGNMENT)
        return [self._make_one([slots[n] for n in numbers], [owners[n] for n in numbers]) for numbers in cut]

    def _make_one(self, slots: list[Slot], owners: list[int]) -> Bucket:
        sizes = [slot.parameter.numel() for slot in slots]
        alignment = max(ALIGNMENT // slots[0].parameter.element_size(), 1)
        if self._cut == "elements":
            placement = by_elements(sizes, self._comm.size, alignment)
        else:
            placement = by_parameters(sizes, owners, self._comm.size, alignment)
        bucket = Bucket(slots, placement, self._comm, self._cut == "elements")
        self._comm.broadcast(bucket.memory, 0)
        return bucket

    def _described(self, slots: Sequence[Slot], options: dict[str, Any]) -> dict[str, str]:
        described = {name: repr(value) for name, value in {**self._settings, **options}.items()}
        for slot in slots:
            dtype = str(slot.parameter.dtype).removeprefix("torch.")
            described[f"parameter {slot.number}"] = f"{dtype}{list(slot.parameter.shape)}"
        return described
