"""What becomes of rank processes when the process that has started them dies."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the thread that has started it ends, and ends it if that is over.

    Args:
        parent: the process that this one was started by.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os.kill(os.getpid(), signal.SIGKILL)
