"""Finds a process's ancestors, and ends ranks whose launcher has died."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ancestors", "end_with_parent"]

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it ends. Kills it now if its parent is gone.

    Args:
        parent: the pid of the process that started this one.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def ancestors() -> Iterator[int]:
    """Yields the pids of this process's parent, of that one's parent, and so on."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return
