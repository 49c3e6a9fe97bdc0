"""Decides which parameters share a bucket. A pure function of numbers, which plans of steps use too."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["assign"]


def assign(
    order: Sequence[int], nbytes: Sequence[int], kinds: Sequence[Hashable], first: float, limit: float
) -> list[list[int]]:
    """Divides parameters, in the order in which their gradients come, into buckets.

    A bucket is full when it reaches its limit. The limit of the first bucket of a kind is small, so that sending can
    begin early. Later buckets hold at most half of the remaining bytes: the backward pass cannot hide the last bucket,
    so it must be small.

    Args:
        order: the parameters' numbers, in the order of their gradients.
        nbytes, kinds: the size and kind of each parameter, by its number. Only parameters of one kind share a bucket.
        first, limit: the bytes of the first bucket of a kind, and of the others.

    Returns:
        The buckets, in the order in which they become complete.
    """
    open_buckets: dict[Hashable, list[int]] = {}
    full: list[list[int]] = []
    room: dict[Hashable, float] = {}  # the bytes left in the open bucket of a kind
    rest = sum(nbytes[number] for number in order)
    for number in order:
        kind = kinds[number]
        if kind not in open_buckets:
            room[kind] = min(limit, max(first, rest / 2)) if kind in room else first
            open_buckets[kind] = []
        open_buckets[kind].append(number)
        room[kind] -= nbytes[number]
        rest -= nbytes[number]
        if room[kind] <= 0:
            full.append(open_buckets.pop(kind))
    place = {number: position for position, number in enumerate(order)}
    return sorted([*full, *open_buckets.values()], key=lambda bucket: place[bucket[-1]])
