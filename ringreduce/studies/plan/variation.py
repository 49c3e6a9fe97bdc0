"""Ranks that are not equally fast: lasting differences, and delays that change from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from ringreduce.settings import Table

__all__ = ["Variation"]

DRAWS = 2_000_000  # of all trials together
FEWEST, MOST = 8, 200  # trials


class Variation(Table):
    """How the computing times of ranks differ. In files it is the table ``[variation]``.

    Times are drawn from gamma distributions. They are nearly normal if they vary little, and exponential if the
    standard deviation is the mean.

    Attributes:
        jitter: The standard deviation of the time that a rank computes in a step, relative to the mean. Each rank and
            step differ.
        spread: The same of lasting differences between ranks.
        slow_share: The part of the ranks that are slow all the time.
        slow_times: How many times longer these take.
        seed: The seed of the random times.
    """

    jitter: NonNegativeFloat = 0.0
    spread: NonNegativeFloat = 0.0
    slow_share: float = Field(default=0.0, ge=0, le=1)
    slow_times: float = Field(default=2.0, ge=1)
    seed: NonNegativeInt = 0

    def slowest(self, world: int, steps: int = 1) -> float:
        """Returns how much longer than the mean the slowest of the ranks takes, on average over many trials.

        Args:
            world: The number of ranks.
            steps: The steps after which the ranks wait for each other. Delays average out over them.
        """
        return self._mean(
            world, lambda draw: (self._lasting(draw, world) * self._passing(draw, world, steps)).max()
        )

    def balanced(self, world: int, steps: int = 1) -> float:
        """Returns the same if each rank has a share of the work that fits its lasting speed."""

        def once(draw: np.random.Generator) -> float:
            fair = 1 / np.mean(1 / self._lasting(draw, world))
            return float(fair * self._passing(draw, world, steps).max())

        return self._mean(world, once)

    def _mean(self, world: int, once: Any) -> float:
        trials = min(max(DRAWS // world, FEWEST), MOST)
        draw = np.random.default_rng(self.seed)
        return float(np.mean([once(draw) for _ in range(trials)]))

    def _lasting(self, draw: np.random.Generator, world: int) -> Any:
        slow = draw.random(world) < self.slow_share
        return _gamma(draw, world, self.spread) * np.where(slow, self.slow_times, 1.0)

    def _passing(self, draw: np.random.Generator, world: int, steps: int) -> Any:
        return _gamma(draw, world, self.jitter / steps**0.5)


def _gamma(draw: np.random.Generator, count: int, deviation: float) -> Any:
    if not deviation:
        return np.ones(count)
    shape = deviation**-2
    return draw.gamma(shape, 1 / shape, count)
