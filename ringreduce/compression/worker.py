"""A thread that does jobs one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Worker"]

Job = Callable[[], None]


class Worker:
    """Does jobs, which must not raise, in the order in which they are given.

    The thread is a daemon, so that a program that ends in the middle of a collective does not wait for its peers.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def give(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self, limit: float | None = None) -> None:
        """Ends the thread once it has done its jobs; waits for that, with a limit so many seconds at most."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(limit)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it refers to may go while we wait for the next
