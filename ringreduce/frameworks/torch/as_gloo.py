"""``RINGREDUCE_AS=gloo``: groups that a program asks torch.distributed's Gloo for are served by ringreduce.

Programs and frameworks name "gloo" themselves, compare names with it, or construct ``ProcessGroupGloo``. This module
puts a class in the place of torch's, under the same names. Its objects are our backends. Names of groups stay Gloo's,
so ``get_backend()`` still returns "gloo". A subclass of the class is a subclass of torch's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

__all__ = ["check", "install"]

VARIABLE = "RINGREDUCE_AS"
Create = Callable[[Any, int, int, timedelta], Any]  # from a store, a rank, a number of ranks and a timeout
# What Gloo's ranks read in the place of this one's address. It begins with the length of a name, in 8 bytes; no string
# can be so long, so that Gloo raises. It would read past the end of fewer bytes.
_NO_ADDRESS = b"\xff" * 8
# Seconds between two looks at a rank that has not come.
_SOON, _LATER = 0.001, 0.1


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
            agree(store, rank, size, timeout)
            return create(store, rank, size, timeout)

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


def _timeout(given: Any = None, *, timeout: timedelta | None = None, options: Any = None) -> timedelta:
    """Returns the timeout of the arguments that Gloo's constructors take after store, rank and size."""
    from torch.distributed.constants import default_pg_timeout

    if isinstance(given, timedelta):
        return given
    chosen = given if given is not None else options
    found: timedelta = chosen._timeout if chosen is not None else timeout or default_pg_timeout
    return found


# --- whether all ranks have the variable -------------------------------------------------------------------


def _key(rank: int) -> str:
    return f"ringreduce/as_gloo/{rank}"


def _glooes_key(rank: int) -> str:
    """The key under which Gloo's rank says where it listens."""
    return f"0/{rank}"


def agree(store: Any, rank: int, size: int, timeout: timedelta) -> None:
    """Returns when all ranks have come, or the timeout is over.

    Raises:
        RuntimeError: a rank uses Gloo itself, and all have come. It gets an error from Gloo, too: what it reads in
            the place of a rank's address is none.
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
        ours = {one for one in range(size) if store.check([_key(one)])}
        theirs = [one for one in range(size) if one not in ours and store.check([_glooes_key(one)])]
        if theirs and (is_late or len(ours) + len(theirs) == size):
            _refuse(store, rank, theirs)
        if is_late:
            return


def _refuse(store: Any, rank: int, theirs: list[int]) -> None:
    time.sleep(_LATER)  # Gloo's ranks connect to each other, which would try again if one were gone
    for one in (*theirs, rank):
        store.set(_glooes_key(one), _NO_ADDRESS)
    time.sleep(3 * _LATER)  # this process may hold the store, which the others have yet to read
    raise RuntimeError(
        f"ringreduce: rank {theirs[0]} uses Gloo itself: {VARIABLE}=gloo is set on rank {rank}, but not there. "
        "Set it on all ranks or on none"
    )
