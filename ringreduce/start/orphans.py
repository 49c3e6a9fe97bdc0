"""Whom processes come from, and what becomes of ranks when the process that has started them dies."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ancestors", "end_with_parent"]

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the thread that has started it ends, and ends it if that is over.

    Args:
        parent: the process that this one was started by.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os.kill(os.getpid(), signal.SIGKILL)


def ancestors() -> Iterator[int]:
    """The process that has started this one, the one that has started that, and so on."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return
