"""The exceptions that ringreduce raises.

Invalid arguments raise :class:`ValueError` or :class:`TypeError` at once and leave the communicator usable. After a
:class:`PeerLost`, :class:`MismatchError`, :class:`TimeoutError`, :class:`DamagedError` or :class:`OpFailed`, every
further call raises the same error. :meth:`ringreduce.Communicator.shrink` then makes a new communicator.
"""

from __future__ import annotations

import builtins

__all__ = [
    "ClosedError",
    "DamagedError",
    "Error",
    "MinorityError",
    "MismatchError",
    "OpFailed",
    "PeerLost",
    "RankFailed",
    "TimeoutError",
]


class Error(RuntimeError):
    """The base class of ringreduce's own exceptions."""


class _RankError(Error):
    """An error that a rank caused."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[_RankError], tuple[str, int | None]]:
        return type(self), (str(self), self.rank)


class PeerLost(_RankError):
    """A rank died, closed its communicator or was interrupted while others needed it. ``rank`` is that rank."""


class MinorityError(PeerLost):
    """The group was cut in two, and :meth:`Communicator.shrink` was called on the side that must not continue.

    The other side has more ranks, or of two equal halves the lowest rank, and may continue. ``rank`` is the lowest rank
    that cannot be reached.
    """


class MismatchError(_RankError):
    """The ranks made different calls. The message says which rank called what."""


class TimeoutError(_RankError, builtins.TimeoutError):
    """A wait exceeded its timeout. ``rank`` is the rank that was waited for."""


class DamagedError(_RankError):
    """Bytes changed in transit between two ranks. The message names them, and every rank raises the error.

    Ranks detect this only with ``RINGREDUCE_TCP_CHECK=1`` or with encryption.
    """


class OpFailed(_RankError):
    """An operator of :func:`ringreduce.op` raised an exception on ``rank``. The message names both.

    The call on that rank raises the exception itself, with this error as its cause.
    """


class ClosedError(Error):
    """The communicator is closed, or belongs to the parent of this forked process."""


class RankFailed(_RankError):
    """A rank of :func:`ringreduce.run` raised an exception or died.

    ``rank`` is that rank, and ``__cause__`` the exception.
    """
