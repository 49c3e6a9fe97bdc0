"""Broadcasts of variables, and objects as Horovod's functions for TensorFlow take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringreduce.frameworks.horovod import pickled
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.tensorflow.operations import broadcast_

__all__ = [
    "allgather_object", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn", "broadcast_variables",
]  # fmt: skip


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Copies the root's variables to all ranks.

    Args:
        variables: TensorFlow's or Keras's, the same on all ranks, such as ``model.variables``.
        inplace: ignored: variables keep their memory.
    """
    broadcast_(variables, root_rank, process_set=process_set)


def broadcast_global_variables(root_rank: int) -> None:
    """Raises RuntimeError: TensorFlow 2 has no global variables."""
    raise RuntimeError(
        "TensorFlow 2 has no global variables: use hvd.broadcast_variables(model.variables, root_rank)"
    )


def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Returns a copy of the root's object; on the root, the object itself. Objects are pickled. session is ignored."""
    return pickled.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:  # fmt: skip
    """Returns a function that does what :func:`broadcast_object` does."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns copies of all ranks' objects, in rank order. Objects are pickled. session is ignored."""
    return pickled.allgather_object(obj, name, process_set)
