"""Uneven inputs: ranks without data contribute zeros to the steps of the others."""

from __future__ import annotations

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.training.foundation.exchange import Exchange

__all__ = ["BACKWARD", "BUFFERS", "ENDED", "Join"]

ENDED, BUFFERS, BACKWARD = 0, 1, 2  # what a rank is about to do


class Join:
    """Announces what each rank is about to do before ranks communicate, so that those without data can do the same.

    Attributes:
        root: the first rank that has data, or had data last.
    """

    def __init__(self, comm: Communicator, exchange: Exchange, over_all: bool) -> None:
        self._comm, self._exchange, self._over_all = comm, exchange, over_all
        self.root = 0

    def announce(self, what: int) -> int:
        """Announces what this rank is about to do. Returns what the ranks with data are about to do."""
        plans = self._comm.all_gather(np.array([what], np.uint8))
        active = np.flatnonzero(plans != ENDED)
        if active.size == 0:
            return ENDED
        if len(set(plans[active].tolist())) > 1:
            raise Error(
                "DataParallel: within join() some ranks begin a forward pass and others a backward pass"
            )
        self.root = int(active[0])
        if not self._over_all:
            self._exchange.over = int(active.size)
        return int(plans[self.root])
