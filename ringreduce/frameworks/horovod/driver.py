"""Who runs the cycles of a process set: the thread that waits for an operation, or else one in the background."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from ringreduce.frameworks.horovod.internal_error import HorovodInternalError
from ringreduce.frameworks.horovod.negotiation import Negotiator
from ringreduce.frameworks.horovod.request import Operation, Request

__all__ = ["Driver"]

UNNAMED = 120  # names for calls without one
SHORTEST = 50e-6  # seconds between two cycles that ended nothing

Then = Callable[[Request], None] | None


class Driver:
    """Runs cycles while this rank has submitted something that is not complete.

    A thread that waits runs them itself, so a blocking call needs no other thread. After an asynchronous call, a thread
    in the background does: it waits for one cycle time, in which more tensors may come, and then runs one cycle per
    cycle time.

    Args:
        cycle: seconds between the background's cycles.
    """

    def __init__(self, negotiator: Negotiator, cycle: float) -> None:
        self.negotiator = negotiator
        self._cycle = max(cycle, SHORTEST)
        self._driving = threading.Lock()
        self._waiting: set[Request] = set()
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = False
        self._unnamed: dict[str, Iterator[int]] = defaultdict(itertools.count)  # by kind of operation
        # Around the background's cycles, for a main thread that waits in a framework, and not in Python.
        self.interruptible: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    def submit(
        self,
        name: str,
        operation: Operation,
        in_turn: bool = False,
        blocking: bool = False,
        then: Then = None,
    ) -> Request:
        """Submits an operation, and returns its handle.

        Args:
            in_turn: as for :meth:`ringreduce.horovod.negotiation.Negotiator.submit`.
            blocking: whether the caller will wait for it at once.
            then: called with the request when it is done.
        """
        request = Request(name, operation, self, then)
        if not blocking and self._thread is None:
            thread = threading.Thread(target=self._serve, name="ringreduce-horovod", daemon=True)
            thread.start()  # may fail, and then nothing has been submitted
            self._thread = thread
        self.negotiator.submit(request, in_turn)
        if not blocking:
            self._awake.set()
        return request

    def submit_named(
        self, operation: Operation, name: str | None, blocking: bool, in_turn: bool = False, then: Then = None
    ) -> Request:
        """Submits an operation under a name for its kind. Without a name, the order of such calls is its name.

        These names repeat, so that the cache knows them. Their number is a multiple of most numbers of calls that the
        step of a program may make, so that a name mostly belongs to the same call of the program.
        """
        kind = operation.signature[0]
        if name is not None:
            return self.submit(f"{kind}.{name}", operation, in_turn, blocking, then)
        return self.submit(
            f"{kind}.noname.{next(self._unnamed[kind]) % UNNAMED}", operation, True, blocking, then
        )

    def wait(self, request: Request) -> None:
        """Runs cycles until a request is done."""
        self._waiting.add(request)
        try:
            pause = SHORTEST
            while not request.done:
                with self._driving:
                    if request.done or self.negotiator.cycle():
                        pause = SHORTEST
                        continue
                time.sleep(pause)  # the ranks have submitted different things
                pause = min(2 * pause, self._cycle)
        finally:
            self._waiting.discard(request)

    def _serve(self) -> None:
        with contextlib.suppress(
            KeyboardInterrupt
        ):  # operations have failed, and the main thread raises it, too
            self._run_cycles()

    def _run_cycles(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            while not self._over:
                time.sleep(self._cycle)
                if not self.negotiator.pending:
                    break
                if not self._waiting:
                    with self._driving, self.interruptible():
                        if self.negotiator.pending:
                            self.negotiator.cycle()
            if self._over:
                return

    def close(self) -> None:
        """Leaves the set. Operations that are not complete fail, here and on the ranks that wait for them."""
        self._over = True
        self._awake.set()
        with contextlib.suppress(HorovodInternalError):
            if not self.negotiator.pending and self.negotiator.failure is None:
                self.negotiator.comm.close()  # waits until peers have what they need
        self.negotiator.fail("the job has been shut down by hvd.shutdown(), or this process ends")
        if self._thread is not None:
            self._thread.join(5)
