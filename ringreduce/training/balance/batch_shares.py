"""How many samples of a batch each rank gets."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["equal_shares", "fair_shares", "step_time"]


def equal_shares(batch: int, ranks: int) -> list[int]:
    """Returns shares that differ by at most one sample, the larger ones first."""
    return fair_shares(batch, [1.0] * ranks)


def fair_shares(batch: int, costs: Sequence[float], smallest: int = 1) -> list[int]:
    """Divides a batch so that the slowest rank finishes as early as possible.

    Args:
        batch: the number of samples.
        costs: the time that each rank needs for a sample.
        smallest: the smallest share.

    Raises:
        ValueError: the batch is too small for all ranks, or a cost is not positive.
    """
    if batch < smallest * len(costs):
        raise ValueError(f"batch must be at least {smallest} for each of {len(costs)} ranks, not {batch}")
    for rank, cost in enumerate(costs):
        if not cost > 0:
            raise ValueError(f"costs must be positive, not {cost!r} for rank {rank}")
    speed = sum(1 / cost for cost in costs)
    shares = [max(int(batch / cost / speed), smallest) for cost in costs]
    ranks = range(len(costs))
    while sum(shares) < batch:  # the next sample goes where it is finished first
        shares[min(ranks, key=lambda rank: (shares[rank] + 1) * costs[rank])] += 1
    while sum(shares) > batch:  # because of the smallest share
        shares[
            max((rank for rank in ranks if shares[rank] > smallest), key=lambda r: shares[r] * costs[r])
        ] -= 1
    return shares


def step_time(shares: Sequence[int], costs: Sequence[float]) -> float:
    """Returns the time of the rank that takes longest."""
    return max(share * cost for share, cost in zip(shares, costs, strict=True))
