"""Bytes of every rank, of any lengths."""

from __future__ import annotations

import numpy as np

from ringreduce.communicator import Communicator

__all__ = ["gather_bytes"]


def gather_bytes(comm: Communicator, own: bytes, root: int | None = None) -> list[bytes]:
    """All ranks' bytes, in rank order. Every rank must call it.

    Args:
        root: the rank that gets them, the others get []; None: all ranks.
    """
    data = np.frombuffer(own, np.uint8)
    counts = comm.all_gather(np.array([data.size])).tolist()
    joined = comm.all_gather(data, counts=counts) if root is None else comm.gather(data, root, counts=counts)
    if joined is None:
        return []
    return [part.tobytes() for part in np.split(joined, np.cumsum(counts)[:-1])]
