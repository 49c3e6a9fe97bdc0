"""``RINGREDUCE_AS=gloo``: groups that a program asks torch.distributed's Gloo for are served by ringreduce.

Programs and frameworks name "gloo" themselves, compare names with it, or construct ``ProcessGroupGloo``. This module
puts a class in the place of torch's, under the same names. Its objects are our backends. Names of groups stay Gloo's,
so ``get_backend()`` still returns "gloo". A subclass of the class is a subclass of torch's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

__all__ = ["check", "install"]

VARIABLE = "RINGREDUCE_AS"
Create = Callable[[Any, int, int, timedelta], Any]  # from a store, a rank, a number of ranks and a timeout
# What programs also ask the objects for.
_ALSO_ON_OBJECTS = ("_Options", "create_device", "create_default_device")
# Seconds between two looks at a rank that has not come.
_SOON, _LATER = 0.001, 0.1
# Seconds in which ranks that run Gloo itself take note of connections made to them.
_SETTLING = 0.3


def check(value: str) -> None:
    """Raises ValueError for another value than gloo, which would leave the program to Gloo."""
    if value != "gloo":
        raise ValueError(f"{VARIABLE} must be gloo, not {value!r}")


def install(create: Create, is_ours: Callable[[object], bool]) -> None:
    """Puts the class in the place of torch's.

    Args:
        create: makes one of our backends.
        is_ours: whether an object is one.
    """
    import torch
    import torch.distributed as dist

    native = getattr(dist, "ProcessGroupGloo", None)
    if native is None:  # torch was built without Gloo, and refuses the name
        return
    stand_in = _stand_in(native, create, is_ours)
    for module in (dist, dist.distributed_c10d, torch._C._distributed_c10d):
        module.ProcessGroupGloo = stand_in  # type: ignore[attr-defined]
    dist.ProcessGroup._register_backend = _registering(dist.ProcessGroup, is_ours)  # type: ignore[method-assign]


def _stand_in(native: type, create: Create, is_ours: Callable[[object], bool]) -> type:
    class OfStandIn(type):
        def __new__(meta, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if any(isinstance(base, OfStandIn) for base in bases):
                real = tuple(native if isinstance(base, OfStandIn) else base for base in bases)
                return type(native)(name, real, body)
            return super().__new__(meta, name, bases, body)

        def __call__(cls, store: Any, rank: int, size: int, *rest: Any, **named: Any) -> Any:
            timeout = _timeout(*rest, **named)
            agree(native, store, rank, size, timeout)
            made = create(store, rank, size, timeout)
            for name in _ALSO_ON_OBJECTS:
                setattr(type(made), name, vars(native)[name])
            return made

        def __instancecheck__(cls, thing: object) -> bool:
            return isinstance(thing, native) or is_ours(thing)

        def __subclasscheck__(cls, other: type) -> bool:
            return other is cls or issubclass(other, native)

        def __getattr__(cls, name: str) -> Any:
            return getattr(native, name)

    body = {"__module__": native.__module__, "__qualname__": native.__qualname__, "__doc__": native.__doc__}
    return OfStandIn(native.__name__, (), body)


def _registering(groups: type, is_ours: Callable[[object], bool]) -> Callable[..., None]:
    """Returns the function with which torch puts a backend into a group, for ours as one of a custom type.

    torch's C++ code takes every backend of the type GLOO for its own class, such as where DDP logs Gloo's threads.
    """
    native, kinds = groups._register_backend, groups.BackendType  # type: ignore[attr-defined]

    def register(group: Any, device: Any, kind: Any, backend: Any = None) -> None:
        if kind == kinds.GLOO and is_ours(getattr(backend, "wrapped_pg", backend)):
            kind = kinds.CUSTOM
            if group.name() == "gloo":  # of one backend for all devices
                group._set_default_backend(kind)
        native(group, device, kind, backend)

    return register


def _timeout(
    given: Any = None, *, timeout: timedelta | float | None = None, options: Any = None
) -> timedelta:
    """Returns the timeout of the arguments that Gloo's constructors take after store, rank and size.

    Like every duration for pybind11, it may be a number of seconds.
    """
    from torch.distributed.constants import default_pg_timeout

    chosen = options if given is None else given
    found = getattr(chosen, "_timeout", chosen) or timeout or default_pg_timeout
    return found if isinstance(found, timedelta) else timedelta(seconds=found)


# --- whether all ranks have the variable -------------------------------------------------------------------


def _key(rank: int) -> str:
    return f"ringreduce/as_gloo/{rank}"


def _glooes_key(rank: int) -> str:
    """The key under which Gloo's rank says where it listens."""
    return f"0/{rank}"


def agree(native: type, store: Any, rank: int, size: int, timeout: timedelta) -> None:
    """Returns when all ranks have come, or the timeout is over.

    Raises:
        RuntimeError: a rank uses Gloo itself, and all have come. It gets an error from Gloo, too, in its first
            operation.
    """
    if size == 1:
        return
    store.set(_key(rank), b"1")
    end, pause = time.monotonic() + timeout.total_seconds(), _SOON
    while not store.check([_key(one) for one in range(size)]):
        is_late = time.monotonic() >= end
        time.sleep(pause)
        pause = min(2 * pause, _LATER)
        if pause < _LATER and not is_late:
            continue
        # In this order: another one of ours has written both keys if it connects already.
        listening = [one for one in range(size) if store.check([_glooes_key(one)])]
        ours = {one for one in range(size) if store.check([_key(one)])}
        theirs = [one for one in listening if one not in ours]
        have_come = len(ours) + len(theirs) == size
        if theirs and have_come:
            _connect_and_leave(native, store, rank, size, timeout)
        if theirs and (have_come or is_late):
            raise RuntimeError(
                f"ringreduce: rank {theirs[0]} uses Gloo itself: {VARIABLE}=gloo is set on rank {rank}, but not there. "
                "Set it on all ranks or on none"
            )
        if is_late:
            return


def _connect_and_leave(native: type, store: Any, rank: int, size: int, timeout: timedelta) -> None:
    """Connects as Gloo does, then ends the connections. All ranks of ours call it.

    Gloo's ranks connect to each other in turn. Some would wait until their timeout for one that gave up before its turn
    came. So all get through, and find afterwards that these connections have ended.
    """
    with suppress(RuntimeError):  # one of them has ended
        connected = [native(store, rank, size, timeout)]
        # The process, which may hold the store, lasts as long.
        threading.Timer(_SETTLING, connected.clear).start()
