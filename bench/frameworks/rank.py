"""What the ranks of framework_calls.py share: how often to call, and the figures of a line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

BATCH_BYTES = 256 << 10
LEAST, MOST = 7, 300  # samples


def batch_of(nbytes: int) -> int:
    """Returns the number of calls of one sample."""
    return max(1, min(20, BATCH_BYTES // nbytes))


def figures(
    sample: Callable[[], float], calls: int, budget: float, maximum: Callable[[np.ndarray], np.ndarray]
) -> dict[str, float]:
    """Takes samples, and returns the quartiles of the slowest rank's times in microseconds.

    Args:
        sample: returns the seconds of one call.
        calls: the calls of a sample.
        budget: seconds for all.
        maximum: returns the greatest of all ranks' values.
    """
    warm = maximum(np.array([sample() for _ in range(8)]))
    count = int(np.clip(budget / (warm.min() * calls), LEAST, MOST))
    times = 1e6 * maximum(np.array([sample() for _ in range(count)]))
    low, median, high = (round(float(q), 3) for q in np.quantile(times, [0.25, 0.5, 0.75]))
    return {"median_us": median, "p25_us": low, "p75_us": high}
