"""How a rank fails."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

Tell = Callable[..., None]


class Boom(BaseException):
    """What is raised amid a rank's work: nothing that it would catch."""


def strike(how: str, tell: Tell, comm: Any = None) -> None:
    """Fails at once. Returns where the rank goes on, closed or late."""
    tell(fault=time.monotonic())
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how in ("stop", "pause"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "exit":
        raise SystemExit(3)
    if how == "raise":
        raise Boom
    if how == "close":
        comm.close()
    if how in ("never", "kill", "stop"):
        threading.Event().wait()  # until the trial is over, and the process killed


@contextlib.contextmanager
def struck_within(how: str, delay: float, tell: Tell, comm: Any = None):
    """Fails after so many seconds, amid what the main thread does by then."""
    if how in ("exit", "raise"):
        signal.signal(signal.SIGALRM, lambda *_: strike(how, tell))
        signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        timer = threading.Timer(delay, strike, (how, tell, comm))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.join()
