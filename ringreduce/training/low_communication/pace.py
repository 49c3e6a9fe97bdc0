"""How many local steps each rank makes in a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["Pace"]

TOLERANCE = 0.1  # smaller relative differences, between ranks or to the round before, are taken for noise


class Pace:
    """Lets slower ranks make fewer local steps, so that all ranks end a round at the same time.

    The fastest rank makes all steps of a round. A rank whose steps take k times as long makes the first 1/k of them and
    skips the others. See Liu et al., "Asynchronous Local-SGD Training for Language Modeling" (2024), section 5 (dynamic
    local updates). In an average a rank counts in proportion to its steps (McMahan et al., "Communication-Efficient
    Learning of Deep Networks from Decentralized Data", 2017).

    Args:
        size: the number of ranks.
        every: the number of steps of the fastest rank in a round.
        adaptive: whether slower ranks make fewer.
    """

    def __init__(self, size: int, every: int, adaptive: bool) -> None:
        self._every, self._adaptive = every, adaptive
        self.steps = [every] * size  # of each rank, in this round
        self._times: list[float] = []
        self._began = time.monotonic()

    def end_step(self) -> None:
        """Records how long this rank's step took."""
        self._times.append(time.monotonic() - self._began)

    def begin_step(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Returns the median duration of this rank's steps in this round. A pause between two steps has no effect."""
        return statistics.median(self._times or [0.0])

    def weight(self, rank: int) -> float:
        """Returns the weight of a rank in the average, 1 if all ranks make the same number of steps."""
        return self.steps[rank] * len(self.steps) / sum(self.steps)

    def next_round(self, seconds: Sequence[float]) -> None:
        """Sets the ranks' numbers of steps, given the seconds that a step took on each rank."""
        self._times = []
        if not self._adaptive:
            return
        fastest = min(seconds)
        for rank, own in enumerate(seconds):
            slower = own > fastest * (1 + TOLERANCE)
            steps = max(1, int(self._every * fastest / own)) if slower else self._every
            if abs(steps - self.steps[rank]) > TOLERANCE * self.steps[rank]:
                self.steps[rank] = steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """With another number of ranks, or if the steps do not adapt, all make the same number of steps."""
        if self._adaptive and len(saved["steps"]) == len(self.steps):
            self.steps = [int(steps) for steps in saved["steps"]]
