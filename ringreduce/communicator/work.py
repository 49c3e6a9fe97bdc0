"""Calls under way on the progress thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ringreduce import _engine, errors
from ringreduce._engine import values
from ringreduce.arrays import streams

__all__ = ["GpuWork", "Work"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Result = TypeVarWithDefault("Result", default=Any)
else:
    Result = TypeVar("Result")

LOOK_EVERY = 1e-4  # seconds, at a GPU that one waits for


class Work(Generic[Result]):
    """A call under way on the progress thread. Its buffers must be left alone until it is done."""

    __slots__ = ("_after", "_engine", "_keep", "_result", "_with_source")

    def __init__(
        self,
        engine: Any,
        result: Any,
        keep: tuple[Any, ...],
        after: Callable[[], None] | None,
        with_source: bool = False,
    ):
        self._engine = engine
        self._result = result
        self._keep = keep
        self._after = after
        self._with_source = with_source

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the call is over.

        Args:
            timeout: seconds to wait at most; None waits as long as the call may take.

        Returns:
            What the blocking call would have returned.

        Raises:
            TimeoutError: the time was up first; the call goes on.
            Error: what the blocking call would have raised.
        """
        if not self._engine.wait(timeout):
            raise errors.TimeoutError(f"the call is not over after {timeout} s")
        self._settle()
        found: Any = (self._result, self.source) if self._with_source else self._result
        result: Result = found
        return result

    def done(self) -> bool:
        """Whether the call is over, well or not."""
        if not self._engine.done():
            return False
        if self._engine.exception() is None:
            self._settle()
        return True

    def _settle(self) -> None:
        """Copies the values back into an array that is not contiguous."""
        after, self._after = self._after, None
        if after is not None:
            after()

    def exception(self) -> BaseException | None:
        """What went wrong, if the call is over and has failed; does not wait."""
        problem: BaseException | None = self._engine.exception()
        return problem

    @property
    def began(self) -> float | None:
        """When the engine began the call, in seconds of time.monotonic(); None before the call is over."""
        return self._engine.began() if self._engine.done() else None

    @property
    def ended(self) -> float | None:
        """When the call was over, in seconds of time.monotonic(); None before that."""
        return self._engine.ended() if self._engine.done() else None

    @property
    def source(self) -> int | None:
        """Of a receive: the rank that the message came from; None before that is known, and of other calls."""
        source = self._engine.source()
        return None if source < 0 else source


class GpuWork(Work[Result]):
    """A call under way on a GPU, on the communicator's own stream. Its arrays must be left alone until it is done, or
    used only by what comes after :meth:`wait` on the stream that waits."""

    __slots__ = ("_check", "_stream")

    def __init__(
        self,
        engine: _engine.GpuWork,
        result: Any,
        keep: tuple[Any, ...],
        after: Callable[[], None] | None,
        check: Callable[[], None],
        stream: streams.Stream,
    ):
        super().__init__(engine, result, keep, after)
        self._check = check
        self._stream = stream

    def wait(self, timeout: float | None = None) -> Result:
        """Lets a stream wait until the call is over: the one that the call was given, or the current one.

        Args:
            timeout: seconds that this thread waits at most; None: it goes on at once.

        Returns:
            What the blocking call would have returned.

        Raises:
            TimeoutError: the time was up first; the call goes on.
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
                raise errors.TimeoutError(f"the call is not over after {timeout} s")
            time.sleep(LOOK_EVERY)
        self._check()

    def _waiting_stream(self) -> int | None:
        if self._stream is not None:
            return streams.handle_of(self._stream)
        array = next(one for one in self._keep if one is not None)
        return streams.current(array, self._engine.device)

    def done(self) -> bool:
        """Whether the call is over on the GPU, well or not."""
        over: bool = self._engine.done()
        if over:
            self._settle()
        return over

    def exception(self) -> BaseException | None:
        """How the group failed, if the call is over and the group has; does not wait."""
        if self._engine.done():
            try:
                self._check()
            except Exception as error:
                return error
        return None

    @property
    def began(self) -> None:
        """Not known of a GPU."""

    @property
    def ended(self) -> None:
        """Not known of a GPU."""

    @property
    def source(self) -> None:
        """There are no receives into a GPU's memory."""
