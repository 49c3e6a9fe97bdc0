"""Broadcasts and all-gathers of Python objects."""

from __future__ import annotations

from typing import Any

from ringreduce.frameworks.horovod.job import run_on
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.request import CallOperation

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns a copy of the root's object; on the root, the object itself. Objects are pickled.

    Raises:
        ValueError: the object cannot be pickled, or not be unpickled on this rank.
    """
    place = process_set.place_of(root_rank, "root_rank")
    settings = (("root_rank", root_rank),)
    call = CallOperation("broadcast_object", settings, lambda comm: comm.broadcast_object(obj, place))
    return run_on(process_set, call, name)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns copies of all ranks' objects, in rank order. Objects are pickled.

    Raises:
        ValueError: an object cannot be pickled, or not be unpickled on this rank.
    """
    call = CallOperation("allgather_object", (), lambda comm: comm.all_gather_object(obj))
    found: list[Any] = run_on(process_set, call, name)
    return found
