"""For processes that are started without standard input, output or error.

The library's files and sockets must not get their numbers: what the program, or a child of it, writes to its standard
error would reach them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["above_standard", "drop_output", "say", "with_standard_streams"]

_lock = threading.Lock()
_users = 0
_held: list[int] = []  # in place of standard descriptors that are closed


@contextmanager
def above_standard() -> Iterator[None]:
    """Keeps what is opened in this context above descriptor 2, even by other libraries. Also a decorator."""
    global _users
    with _lock:
        _users += 1
        while (
            one := os.open("/", os.O_PATH | os.O_CLOEXEC)
        ) <= 2:  # reads and writes fail, as of a closed one
            _held.append(one)
        os.close(one)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            while _held and not _users:
                os.close(_held.pop())


def say(text: str) -> None:
    """Prints a line to standard error, if there is one. (print() would print to standard output instead.)"""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def drop_output() -> int:
    """Makes further output go nowhere: the reader of standard output has gone, like head.

    Returns the exit status of a command that SIGPIPE ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def with_standard_streams() -> None:
    """Lets a command print as if it had all standard streams."""
    with above_standard():
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _forget_after_fork() -> None:
    global _lock, _users
    _lock, _users = threading.Lock(), 0
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_after_fork)
