"""The exceptions of Horovod's API."""

from __future__ import annotations

__all__ = ["HorovodInternalError"]


class HorovodInternalError(RuntimeError):
    """An operation failed on all ranks: their calls differ, a rank was lost, or the job was shut down.

    After calls that differ, the job can continue. After the loss of a rank, every further operation raises.
    """
