"""Makes forks of a process cheap that has imported what its children need."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["settle"]

HUGE = 2 << 20
_MADV_COLLAPSE = 25


def settle() -> None:
    """Call it after the imports, and before the first fork.

    What is there stays, so no collection in a child need look at it, and thereby copy it. And where Linux can (from 6.1
    on), it moves into huge pages: a fork then copies a five-hundredth of the page table.
    """
    gc.collect()
    gc.freeze()
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as maps:
        for line in list(maps):
            place, rights, _, _, inode, *name = line.split()
            begin, end = (int(number, 16) for number in place.split("-"))
            begin, end = -(-begin // HUGE) * HUGE, end // HUGE * HUGE
            if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and begin < end:
                advise(begin, end - begin, _MADV_COLLAPSE)  # of no consequence where it fails
