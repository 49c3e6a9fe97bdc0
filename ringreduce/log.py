"""The log: what ranks chose, and for which ranks they wait.

With RINGREDUCE_LOG=info or debug, lines go to standard error. Without it, the program's configuration of Python's
logging decides, for the logger "ringreduce" and its children "ringreduce.meeting" and "ringreduce.engine". It is read
when a communicator is made. If the program has configured nothing, warnings go to standard error.

The engine's threads never wait for Python: they write their lines to a pipe, which a thread of this module reads.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ringreduce.descriptors import above_standard

__all__ = ["begin", "drain", "level_of", "say", "waiting"]

_FIRST_WORD = 5.0  # seconds of a wait before the first line
_LONGEST_SILENCE = 60.0

_logger = logging.getLogger("ringreduce")
_lock = threading.Lock()
_program_decides = False
_pipe: _Pipe | None = None
_looked_for_unknown = False


def begin(rank: int) -> None:
    """Decides what to log and where, before a communicator is made.

    Raises:
        ValueError: RINGREDUCE_LOG is not a level.
    """
    global _program_decides, _looked_for_unknown
    from ringreduce._engine import log

    with _lock:
        by_variable = log.from_environment() is not None
        _program_decides = not by_variable and _logger.hasHandlers()
        if _program_decides and _logger.isEnabledFor(logging.INFO):
            _to_logging(_logger.getEffectiveLevel())
        elif not by_variable:
            log.to_stderr(logging.WARNING)
        first, _looked_for_unknown = not _looked_for_unknown, True
    if first and rank == 0:
        from ringreduce import environment

        for complaint in environment.complaints(os.environ):
            say("environment", logging.WARNING, rank, complaint)


def say(topic: str, level: int, rank: int, text: str) -> None:
    """Logs a line with the logger ``ringreduce.<topic>``."""
    if _program_decides:
        _logger.getChild(topic).log(level, "rank %d: %s", rank, text)
    else:
        from ringreduce._engine import log

        log.say(level, f"rank {rank}", text)


def level_of(rank: int) -> int:
    """Returns the level of a line that only rank 0 needs to log."""
    return logging.INFO if rank == 0 else logging.DEBUG


@contextmanager
def waiting(topic: str, rank: int, for_whom: Callable[[], str]) -> Iterator[None]:
    """Logs from a thread, at growing intervals, which rank a wait is for. (Rank 1 logs the waits for rank 0.)"""
    from ringreduce._engine import log

    level = level_of(max(rank - 1, 0))
    if not (_logger.isEnabledFor(level) if _program_decides else log.says(level)):
        yield
        return
    over = threading.Event()
    start = time.monotonic()

    def remind() -> None:
        pause = _FIRST_WORD
        while not over.wait(pause):
            say(topic, level, rank, f"has waited {time.monotonic() - start:.0f} s for {for_whom()}")
            pause = min(2 * pause, _LONGEST_SILENCE)

    reminder = threading.Thread(target=remind, name="ringreduce-log-waiting", daemon=True)
    try:
        reminder.start()
    except RuntimeError:  # there can be no more threads
        over.set()
    try:
        yield
    finally:
        if not over.is_set():
            over.set()
            reminder.join()


class _Pipe:
    """The pipe through which the engine's lines reach Python's logging."""

    def __init__(self) -> None:
        with above_standard():
            self._source, self.end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.end, False)  # a full pipe loses lines, but blocks nobody
        self._drained = threading.Event()
        threading.Thread(target=self._read, name="ringreduce-log", daemon=True).start()

    def _read(self) -> None:
        logger, rest = _logger.getChild("engine"), b""
        while True:
            *records, rest = (rest + os.read(self._source, 1 << 16)).split(b"\0")
            for record in records:
                if not record:
                    self._drained.set()
                    continue
                head, _, text = record.decode(errors="replace").partition("\n")
                logger.log(int(head[:2]), "%s: %s", head[2:], text)

    def drain(self) -> None:
        self._drained.clear()
        for _ in range(1000):
            with suppress(BlockingIOError):
                os.write(self.end, b"\0")
                break
            time.sleep(0.001)
        self._drained.wait(1)


def _to_logging(level: int) -> None:
    global _pipe
    from ringreduce._engine import log

    _pipe = _pipe or _Pipe()
    log.to_pipe(level, _pipe.end)


def drain() -> None:
    """Waits, at the end of a program, until all lines have been logged."""
    if _pipe:
        _pipe.drain()


def _forget_after_fork() -> None:
    """Makes a new lock and drops the pipe: the reading thread, and perhaps the lock's owner, are the parent's."""
    global _lock, _pipe
    _lock = threading.Lock()
    if _pipe:
        from ringreduce._engine import log

        _pipe = None
        log.to_stderr(logging.WARNING)


os.register_at_fork(after_in_child=_forget_after_fork)
