"""What the links between ranks are worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringreduce import _engine

__all__ = ["Links"]


class Links:
    """Measured links between hosts; between ranks, where all share one host.

    Of each host its first rank is measured: all else is NaN, and so is what was left out.

    Attributes:
        latency: seconds that a small message takes from rank i to rank j, at [i, j]; float64 (size, size).
        bandwidth: bytes a second from rank i to rank j while j sends as much to i, and other pairs of hosts do the
            same, at [i, j]; float64 (size, size).
        order: how rings and chains visit the ranks because of it; None: by number, one host after the other.
    """

    latency: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    order: list[int] | None

    def __init__(self, found: _engine.Links, order: list[int]) -> None:
        def table(values: list[float]) -> NDArray[np.float64]:
            values_by_pair = np.array(values).reshape(found.world, found.world)
            return np.where(values_by_pair > 0, values_by_pair, np.nan)

        self.latency, self.bandwidth = table(found.latency), table(found.bandwidth)
        self.order = order or None

    def __repr__(self) -> str:
        known = np.isfinite(self.bandwidth)
        if not known.any():
            return "<Links: none>"
        latency, bandwidth = 1e6 * self.latency[known], self.bandwidth[known] / 1e9
        ranges = f"{latency.min():.3g} to {latency.max():.3g} us, {bandwidth.min():.3g} to {bandwidth.max():.3g} GB/s"
        return f"<Links: {ranges}, order {self.order}>"
