"""Which parameter goes into which bucket."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["assign"]


def assign(
    order: Sequence[int], nbytes: Sequence[int], kinds: Sequence[Hashable], first: float, limit: float
) -> list[list[int]]:
    """Cuts parameters, in the order in which their gradients come, into buckets.

    A bucket is full once it holds its limit of bytes. The first of a kind has a limit of its own: a small one, so
    that there is something to send early on. Later ones hold half of what is still to come, at most: what is sent
    last cannot hide behind the backward pass, and so is little.

    Args:
        order: the parameters' numbers.
        nbytes, kinds: of each parameter, by its number. Only parameters of one kind share a bucket.
        first, limit: bytes, of the first bucket of a kind and of the others.

    Returns:
        The buckets, in the order in which the last of their gradients comes.
    """
    open_buckets: dict[Hashable, list[int]] = {}
    full: list[list[int]] = []
    room: dict[Hashable, float] = {}  # bytes, in the open bucket of a kind
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
