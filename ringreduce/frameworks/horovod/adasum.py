"""Adasum: a sum of gradients that adapts to their directions.

Maleki et al., "Scaling distributed training with adaptive summation" (arXiv 2006.02924). Two gradients that are
orthogonal are added, and two that are parallel are averaged:

    adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

More are combined in a binary tree. Each tensor has its own products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod.kit import Kit

__all__ = ["adasum"]

TAG = 0xADA5


def adasum(kit: Kit, comm: Communicator, x: Any, sizes: list[int]) -> None:
    """Replaces x [count] by the adaptive sum of all ranks' x. The number of ranks is a power of two.

    Neighbouring groups of ranks exchange their sums, first of one rank, then of two, and so on. Both sides compute the
    same expression of the same values, so all ranks get the same bits. Floats narrower than 32 bits are combined in
    float32.

    Args:
        sizes: the numbers of elements of the tensors that x consists of.
    """
    ends = np.cumsum(sizes).tolist()
    places = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    theirs: Any = kit.message(ends[-1], x)
    distance = 1
    while distance < comm.size:
        peer = comm.rank ^ distance
        sent = comm.send(x, peer, tag=TAG, async_op=True)
        comm.recv(theirs, peer, tag=TAG)
        sent.wait()
        for place in places:
            own, other = kit.wide(x[place]), kit.wide(theirs[place])
            kit.copy([x[place]], [_sum(kit, own, other) if comm.rank < peer else _sum(kit, other, own)])
        distance *= 2


def _sum(kit: Kit, a: Any, b: Any) -> Any:
    product, square_a, square_b = (kit.dot(u, v) for u, v in ((a, b), (a, a), (b, b)))
    of_a = 1 - product / (2 * square_a) if square_a else 1.0
    of_b = 1 - product / (2 * square_b) if square_b else 1.0
    return of_a * a + of_b * b
