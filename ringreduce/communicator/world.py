"""The communicator of all ranks, and functions that call its collectives."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from ringreduce.communicator.communicator import Communicator
from ringreduce.errors import Error

P = ParamSpec("P")
R = TypeVar("R")

_choosing = threading.RLock()  # held to change what follows
_world: Communicator | None = None
_of_the_parent: Communicator | None = None


def remembered(start: Callable[P, Communicator]) -> Callable[P, Communicator]:
    """Makes the first communicator that the function returns, or the first one after that is closed, the world."""

    @functools.wraps(start)
    def function(*args: P.args, **kwargs: P.kwargs) -> Communicator:
        comm = start(*args, **kwargs)
        with _choosing:
            if not is_initialized():
                _become_world(comm)
        return comm

    return function


def world() -> Communicator:
    """Returns the communicator of all ranks: the one that the first :func:`init` returned, or :func:`join`.

    Once its ``shrink()`` or ``grow()`` has returned, it is the communicator that these have made.

    Raises:
        Error: :func:`init` has not been called, or the communicator is closed.
    """
    comm = _world
    if comm is None or comm._c.closed:
        raise Error("call ringreduce.init() first")
    return comm


def chosen(comm: Communicator | None) -> Communicator:
    """Returns comm, or else the communicator of all ranks."""
    if comm is None:
        return world()
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm must be a ringreduce.Communicator, not {type(comm).__name__}")
    return comm


def _become_world(comm: Communicator) -> None:
    """Makes comm the world. When comm has a successor, nothing here keeps comm."""
    global _world
    with _choosing:
        _world = comm
        comm._on_success = _become_world


def is_initialized() -> bool:
    """Returns whether :func:`world` has a communicator to return."""
    comm = _world
    return comm is not None and not comm._c.closed


def finalize() -> None:
    """Closes the communicator of all ranks, if there is one."""
    global _world
    comm = _world
    if comm is not None:
        comm.close()
        with _choosing:
            if _world is comm:
                _world = None


def _forget_the_parents() -> None:
    """A forked child has no part in its parent's group. The object stays: a fork must not run destructors."""
    global _choosing, _world, _of_the_parent
    _choosing = threading.RLock()
    _world, _of_the_parent = None, _world


os.register_at_fork(after_in_child=_forget_the_parents)


def _on_world(method: Callable[Concatenate[Communicator, P], R]) -> Callable[P, R]:
    """Turns a method into a function on the communicator of all ranks, with the same docstring and signature."""

    @functools.wraps(method)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(world(), *args, **kwargs)

    signature = inspect.signature(method)
    without_self = list(signature.parameters.values())[1:]
    function.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return function


all_reduce = _on_world(Communicator.all_reduce)
reduce_scatter = _on_world(Communicator.reduce_scatter)
all_gather = _on_world(Communicator.all_gather)
broadcast = _on_world(Communicator.broadcast)
reduce = _on_world(Communicator.reduce)
gather = _on_world(Communicator.gather)
scatter = _on_world(Communicator.scatter)
all_to_all = _on_world(Communicator.all_to_all)
scan = _on_world(Communicator.scan)
exscan = _on_world(Communicator.exscan)
all_gather_object = _on_world(Communicator.all_gather_object)
broadcast_object = _on_world(Communicator.broadcast_object)
gather_object = _on_world(Communicator.gather_object)
scatter_object = _on_world(Communicator.scatter_object)
barrier = _on_world(Communicator.barrier)
send = _on_world(Communicator.send)
recv = _on_world(Communicator.recv)
explain = _on_world(Communicator.explain)
