"""The first group of a rank: that of the launcher, or a group of its own until it joins the others."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import ringreduce
from ringreduce.communicator import Communicator
from ringreduce.start.bootstrap import newcomer
from ringreduce.start.launchers import is_newcomer, was_started_alone

__all__ = ["joins", "start"]

_to_join: weakref.WeakKeyDictionary[Communicator, Callable[[], Communicator]] = weakref.WeakKeyDictionary()


def start(store: Any = None, *, timeout: float = 300.0, **arguments: Any) -> Communicator:
    """Returns the communicator with which to make the model and the optimizer.

    It is that of :func:`ringreduce.init`, unless this process takes the place of a lost rank: RINGREDUCE_NEWCOMER is
    set, or one of several agents of torchrun has started it again on its own. Such a process begins in a group of its
    own, with one rank, and joins the others in :func:`ringreduce.elastic.steps`, when its model and optimizer are
    ready. They wait for it only while the state is sent. If they still wait in :func:`ringreduce.init` for the process
    that died, it takes that place, and is no newcomer.

    Args:
        store: as for :func:`ringreduce.init`.
        timeout: as for :func:`ringreduce.init`. A newcomer also waits this long to join.
        arguments: further arguments of :func:`ringreduce.init`.
    """
    if not is_newcomer() and not was_started_alone(os.environ, timeout):
        return ringreduce.init(store=store, timeout=timeout, **arguments)
    how = {key: value for key, value in arguments.items() if key not in ("rank", "size")}
    first = newcomer(store, timeout, **how).wait_for_init()
    if first is not None:
        return first
    (alone,) = ringreduce.local_group(1, timeout=timeout, reproducible=arguments.get("reproducible"))
    _to_join[alone] = lambda: newcomer(store, timeout, **how).wait(for_init=False)
    return alone


def joins(comm: Communicator) -> Callable[[], Communicator] | None:
    """Returns the function with which a newcomer joins the others; None for other ranks, and after the first call."""
    return _to_join.pop(comm, None)
