"""Assigns parameters to buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.filling import assign

__all__ = ["Cut", "make_buckets"]


def make_buckets(slots: Sequence[Slot], first: float, limit: float) -> list[Bucket]:
    """Makes buckets of parameters, given in the order in which their gradients come. See :func:`assign`.

    A parameter with sparse gradients has a bucket of its own.
    """
    nbytes = [0 if slot.sparse else slot.parameter.nbytes for slot in slots]
    kinds = [slot.number if slot.sparse else (slot.parameter.dtype, slot.parameter.device) for slot in slots]
    cut = assign(range(len(slots)), nbytes, kinds, first, limit)
    last = max((n for n, members in enumerate(cut) if not slots[members[0]].sparse), default=-1)
    return [Bucket(n, [slots[place] for place in members], n == last) for n, members in enumerate(cut)]


class Cut:
    """Divides a model's parameters into buckets twice.

    Before the first backward pass, it takes the parameters in reverse order; afterwards, in the order in which one
    rank's gradients came.

    Args:
        first, limit: the bytes of the first bucket of a kind, and of the others.
    """

    def __init__(self, slots: Sequence[Slot], first: float, limit: float) -> None:
        self._slots, self._limits = slots, (first, limit)
        self._arrivals: list[int] = []  # parameters' numbers
        self.is_to_come = True  # whether the second division is still to come

    def first(self) -> list[Bucket]:
        return make_buckets(self._slots[::-1], *self._limits)

    def note(self, slot: Slot) -> None:
        """Records that a gradient has come."""
        if self.is_to_come:
            self._arrivals.append(slot.number)

    def forget(self) -> None:
        """Forgets the order of a failed backward pass, so that the next one counts."""
        self._arrivals.clear()

    def again(self, comm: Communicator, root: int) -> list[Bucket]:
        """Returns the buckets in the order of the root's gradients. Every rank must call it."""
        came = list(dict.fromkeys(self._arrivals))
        never = set(range(len(self._slots))).difference(came)
        order = np.array([*came, *sorted(never, reverse=True)])
        comm.broadcast(order, root)
        self.forget()
        self.is_to_come = False
        return make_buckets([self._slots[number] for number in order], *self._limits)
