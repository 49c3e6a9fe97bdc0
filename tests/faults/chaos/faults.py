"""How a rank fails."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

Tell = Callable[..., None]


class Boom(BaseException):
    """What is raised amid a rank's work: nothing that it would catch."""


SIGNAL_EVERY = 5e-4  # seconds
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2  # prctl(2)
CLONE_CALLS = {"x86_64": (56, 435), "aarch64": (220, 435)}  # clone and clone3


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
    if how == "signals":
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_EVERY, SIGNAL_EVERY)
    if how == "daemon":
        ctypes.pythonapi.Py_Exit(0)  # the interpreter really ends, which a fork's otherwise does not
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


def refuse_threads() -> None:
    """Refuses this process new threads from now on, as a limit does. The superuser has none: a filter of system calls
    takes its place.
    """
    load_number, jump_if_equal, answer = 0x20, 0x15, 0x06  # seccomp(2)
    allowed, refused = 0x7FFF0000, 0x00050000 | errno.EAGAIN
    first, second = CLONE_CALLS[os.uname().machine]
    lines = [
        (load_number, 0, 0, 0),
        (jump_if_equal, 2, 0, first),
        (jump_if_equal, 1, 0, second),
        (answer, 0, 0, allowed),
        (answer, 0, 0, refused),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


@contextlib.contextmanager
def few_descriptors(more: int):
    """This process can open `more` files than it has open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
