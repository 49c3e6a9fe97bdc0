"""Adasum: a sum of gradients that adapts to their directions.

Maleki et al., "Scaling distributed training with adaptive summation" (arXiv 2006.02924). Two gradients that are
orthogonal are added, and two that are parallel are averaged:

    adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

More are combined in a binary tree. Each tensor has its own products.
"""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.communicator import Communicator

__all__ = ["adasum"]

TAG = 0xADA5


def adasum(comm: Communicator, x: Any, sizes: list[int]) -> None:
    """Replaces x [count] by the adaptive sum of all ranks' x. The number of ranks is a power of two.

    Neighbouring groups of ranks exchange their sums, first of one rank, then of two, and so on. Both sides compute the
    same expression of the same values, so all ranks get the same bits. Floats narrower than 32 bits are combined in
    float32.

    Args:
        sizes: the numbers of elements of the tensors that x consists of.
    """
    parts: Any = x.split(sizes)
    distance = 1
    while distance < comm.size:
        peer = comm.rank ^ distance
        theirs: Any = torch.empty_like(x)
        sent = comm.send(x, peer, tag=TAG, async_op=True)
        comm.recv(theirs, peer, tag=TAG)
        sent.wait()
        for own, other in zip(parts, theirs.split(sizes), strict=True):
            own.copy_(_sum(own, other) if comm.rank < peer else _sum(other, own))
        distance *= 2


def _sum(a: Any, b: Any) -> Any:
    wide = torch.promote_types(a.dtype, torch.float32)
    a, b = a.to(wide), b.to(wide)
    product, square_a, square_b = (float(torch.sum((u * v).double())) for u, v in ((a, b), (a, a), (b, b)))
    of_a = 1 - product / (2 * square_a) if square_a else 1.0
    of_b = 1 - product / (2 * square_b) if square_b else 1.0
    return of_a * a + of_b * b
