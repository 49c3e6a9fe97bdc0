"""The measured links between ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringreduce import _engine

__all__ = ["Links"]


class Links:
    """Measured links between hosts, or between ranks if all share one host.

    Only the first rank of each host is measured. All other entries are NaN, as are pairs that were not measured.

    Attributes:
        latency: seconds of a small message from rank i to rank j, at [i, j]; float64 (size, size).
        bandwidth: bytes per second from rank i to rank j, at [i, j]; float64 (size, size). Rank j sends as much to rank
            i, and other pairs of hosts do the same, at the same time.
        order: the order in which rings and chains visit the ranks. None means rank order, one host after another.
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
