"""How things fail.

Bad arguments raise :class:`ValueError` or :class:`TypeError` at once and leave the communicator usable. After a
:class:`PeerLost`, :class:`MismatchError`, :class:`TimeoutError` or :class:`DamagedError` it refuses work with the same
cause until :meth:`ringreduce.Communicator.shrink` makes a new one.
"""

from __future__ import annotations

import builtins

__all__ = ["ClosedError", "DamagedError", "Error", "MismatchError", "PeerLost", "RankFailed", "TimeoutError"]


class Error(RuntimeError):
    """The base of what this library raises by itself."""


class _RankError(Error):
    """An error with a rank to blame."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[_RankError], tuple[str, int | None]]:
        return type(self), (str(self), self.rank)


class PeerLost(_RankError):
    """A rank died, closed its communicator or was interrupted while others needed it; ``rank`` says which."""


class MismatchError(_RankError):
    """Ranks called different things; the message says which rank called what."""


class TimeoutError(_RankError, builtins.TimeoutError):
    """A wait outlasted its timeout; ``rank`` is the rank waited for."""


class DamagedError(_RankError):
    """Bytes changed on their way between two ranks, which the message names; every rank raises it.

    Ranks notice it under ``RINGREDUCE_TCP_CHECK=1`` and with encryption.
    """


class ClosedError(Error):
    """The communicator is closed, or belongs to the process that this one was forked from."""


class RankFailed(_RankError):
    """A rank of :func:`ringreduce.run` raised or died; ``rank`` says which, ``__cause__`` what it raised."""
