"""Uneven inputs: ranks whose data has ended take part in the steps of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ringreduce.errors import Error

if TYPE_CHECKING:
    from ringreduce.data_parallel.wrapper import DataParallel

__all__ = ["BACKWARD", "BUFFERS", "ENDED", "Join"]

ENDED, BUFFERS, BACKWARD = 0, 1, 2  # what a rank is about to do


class Join:
    """Before ranks communicate, each says what it is about to do, so that those without data can do the same."""

    def __init__(self, model: DataParallel, over_all: bool) -> None:
        self._model = model
        self._over_all = over_all
        self.root = 0  # the first rank that has data; still the same when none has

    def announce(self, what: int) -> int:
        """Says what this rank is about to do; returns what the ranks with data are."""
        plans = self._model.comm.all_gather(np.array([what], np.uint8))
        active = np.flatnonzero(plans != ENDED)
        if active.size == 0:
            return ENDED
        if len(set(plans[active].tolist())) > 1:
            raise Error(
                "DataParallel: within join() some ranks begin a forward pass and others a backward pass"
            )
        self.root = int(active[0])
        reducer = self._model._reducer
        reducer.root = self.root
        reducer.exchange.over = self._model.comm.size if self._over_all else int(active.size)
        return int(plans[self.root])

    def shadow(self) -> None:
        """Takes part in the steps of ranks that have data until none has, and gets their model."""
        model = self._model
        model._reducer.settle()
        while (what := self.announce(ENDED)) != ENDED:
            if what == BUFFERS:
                model._sync_buffers(self.root)
            else:
                model._reducer.shadow()
        model._broadcast_state(self.root)
