"""Calls under way on the progress thread."""

from __future__ import annotations

from collections.abc import Callable

from ringreduce import _engine
from ringreduce.arrays import Array

__all__ = ["Work"]


class Work:
    """A call under way on the progress thread. Its buffers must be left alone until it is done."""

    __slots__ = ("_after", "_engine", "_keep", "_result", "_with_source")

    def __init__(
        self,
        engine: _engine.Work,
        result: Array,
        keep: tuple[Array, ...],
        after: Callable[[], None] | None,
        with_source: bool = False,
    ):
        self._engine = engine
        self._result = result
        self._keep = keep
        self._after = after
        self._with_source = with_source

    def wait(self, timeout: float | None = None) -> Array:
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
            from ringreduce.errors import TimeoutError

            raise TimeoutError(f"the call is not over after {timeout} s")
        self._settle()
        return (self._result, self.source) if self._with_source else self._result

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
        return self._engine.exception()

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
