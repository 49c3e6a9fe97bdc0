"""Handles of asynchronous calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ringreduce import _engine, errors
from ringreduce._engine import values
from ringreduce.annotations import Stream
from ringreduce.communicator.arrays import streams
from ringreduce.communicator.ops import own_exception

__all__ = ["GpuWork", "Work"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ringreduce.annotations import Array
    from ringreduce.communicator.base import Base

    Result = TypeVarWithDefault("Result", default=Any)
else:
    Result = TypeVar("Result")

LOOK_EVERY = 1e-4  # seconds between two looks at the GPU


class Work(Generic[Result]):
    """The handle of an asynchronous call. Do not touch the call's arrays until it is done.

    The call continues if you drop the handle. The handle keeps the communicator alive.
    """

    __slots__ = ("_after", "_comm", "_engine", "_raised", "_result", "_settling", "_with_source")

    def __init__(
        self,
        comm: Base,
        engine: Any,
        result: Any,
        after: Callable[[], None] | None,
        with_source: bool = False,
    ):
        self._comm = comm
        self._engine = engine
        self._result = result
        self._after = after
        self._settling = None if after is None else threading.Lock()
        self._with_source = with_source
        self._raised: list[BaseException] = []  # by an operator of the program

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the call has completed.

        Args:
            timeout: the longest wait in seconds. None waits until the call completes or its own timeout ends it.

        Returns:
            The result of the blocking call.

        Raises:
            TimeoutError: the call did not complete within timeout. It continues.
            Error: any error that the blocking call raises.
        """
        problem: BaseException | None = None
        try:
            over = self._engine.wait(timeout)
        except errors.OpFailed:
            problem = self.exception()
        if problem is not None:
            raise problem
        if not over:
            raise errors.TimeoutError(f"the call has not completed after {timeout} s")
        self._settle()
        found: Any = (self._result, self.source) if self._with_source else self._result
        result: Result = found
        return result

    def done(self) -> bool:
        """Returns whether the call has completed or failed."""
        if not self._engine.done():
            return False
        if self._engine.exception() is None:
            self._settle()
        return True

    def _settle(self) -> None:
        """Copies the result back to an array that is not contiguous: one of the threads that wait, once."""
        if self._settling is None:
            return
        with self._settling:
            after, self._after = self._after, None
            if after is not None:
                after()

    def exception(self) -> BaseException | None:
        """Returns the error if the call has failed, else None. Does not wait."""
        problem: BaseException | None = self._engine.exception()
        return problem and own_exception(problem, self._raised)

    @property
    def began(self) -> float | None:
        """When the engine began the call, in seconds of time.monotonic(). None until the call is done."""
        return self._engine.began() if self._engine.done() else None

    @property
    def ended(self) -> float | None:
        """When the call ended, in seconds of time.monotonic(). None until then."""
        return self._engine.ended() if self._engine.done() else None

    @property
    def source(self) -> int | None:
        """The rank that sent the message, for a receive that has matched one. None otherwise."""
        source = self._engine.source()
        return None if source < 0 else source


class GpuWork(Work[Result]):
    """The handle of an asynchronous call on the communicator's CUDA stream.

    Do not touch the call's arrays until it is done, except by work that you launch after :meth:`wait`, on the stream
    that waits.
    """

    __slots__ = ("_array", "_stream")

    def __init__(
        self,
        comm: Base,
        engine: _engine.GpuWork,
        result: Any,
        array: Array | None,
        after: Callable[[], None] | None,
        stream: Stream,
    ):
        super().__init__(comm, engine, result, after)
        self._array = array
        self._stream = stream

    def _check(self) -> None:
        self._comm._c.check()

    def wait(self, timeout: float | None = None) -> Result:
        """Makes a stream wait until the call has completed: the call's ``stream``, or the current one.

        Args:
            timeout: the longest time in seconds that this thread waits, too. None returns at once.

        Returns:
            The result of the blocking call.

        Raises:
            TimeoutError: the call did not complete within timeout. It continues.
            Error: the group has failed.
        """
        self._check()
        if timeout is not None:
            self._wait_here(timeout)
        stream = self._waiting_stream()
        if stream is not None:
            self._engine.let_wait(stream)
        self._settle()
        result: Result = self._result
        return result

    def _wait_here(self, timeout: float) -> None:
        until = time.monotonic() + values.seconds(timeout, "timeout", True)
        while not self._engine.done():
            if time.monotonic() >= until:
                raise errors.TimeoutError(f"the call has not completed after {timeout} s")
            time.sleep(LOOK_EVERY)
        self._check()

    def _waiting_stream(self) -> int | None:
        if self._stream is not None:
            return streams.handle_of(self._stream)
        return streams.current(self._array, self._engine.device)

    def done(self) -> bool:
        """Returns whether the call has completed or failed on the GPU."""
        over: bool = self._engine.done()
        if over:
            self._settle()
        return over

    def exception(self) -> BaseException | None:
        """Returns the error of the group if the call is done and the group has failed, else None. Does not wait."""
        if self._engine.done():
            try:
                self._check()
            except Exception as error:
                return error
        return None

    @property
    def began(self) -> None:
        """None: not measured on GPUs."""

    @property
    def ended(self) -> None:
        """None: not measured on GPUs."""

    @property
    def source(self) -> None:
        """None: messages are not received on GPUs."""
