"""Which errors end an elastic training, and which are losses of ranks that the others survive."""

from __future__ import annotations

from ringreduce import errors

__all__ = ["CannotGoOn", "StateMismatch", "is_loss"]


class StateMismatch(errors.Error):
    """A rank's state is not like that of the others, so it cannot join."""


class CannotGoOn(errors.TimeoutError):
    """The remaining ranks cannot continue: they are too few, or some do not respond."""


def is_loss(error: BaseException | None) -> bool:
    """Returns whether an exception may mean that a rank was lost, so that the others can continue."""
    import torch.distributed as dist

    if isinstance(error, CannotGoOn | errors.MinorityError):
        return False
    kinds: tuple[type[BaseException], ...] = (errors.PeerLost, errors.TimeoutError, errors.DamagedError)
    if dist.is_available():
        kinds += (dist.DistBackendError,)
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False
