"""Proves algorithms written in Python, registers them, and loads them from files."""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringreduce._engine import schedules as _engine
from ringreduce._engine import values
from ringreduce.schedules.collectives import Order
from ringreduce.schedules.steps import Schedule, ScheduleError

Function = Callable[..., Schedule]
"""An algorithm written in Python: ``(world, rank) -> Schedule``.

A parameter called ``root`` receives the root of broadcast, reduce, gather and scatter. A parameter called ``hosts``
receives the ranks of each host, as in :attr:`Communicator.hosts`.
"""

Hosts = Sequence[Sequence[int]]
# World, and the root and hosts if the function takes them.
Place = tuple[int, int, tuple[tuple[int, ...], ...]]


def hosts_of(groups: Sequence[int]) -> list[list[int]]:
    """Returns the ranks of each host, given the number of each rank's host."""
    hosts: dict[int, list[int]] = {}
    for rank, host in enumerate(groups):
        hosts.setdefault(host, []).append(rank)
    return list(hosts.values())


def _parameters(function: Function) -> tuple[str, ...]:
    """Returns which of "root" and "hosts" the function takes."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables that are not written in Python have no signature
        return ()
    return tuple(name for name in ("root", "hosts") if name in known)


def _said(error: BaseException) -> str:
    """Returns an error of user code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check(schedules: Sequence[Schedule] | Function, world: int | None = None, root: int = 0) -> None:
    """Proves that schedules are correct.

    Runs all ranks on symbols instead of values, with sends that wait for their receivers.

    Args:
        schedules: The schedules of all ranks in rank order, or a function ``(world, rank) -> Schedule``.
        world: The number of ranks to call the function for.
        root: The root to call the function for, if it takes one.

    Raises:
        ScheduleError: A result is incomplete, wrong or different between ranks, ranks block each other, or a rule of
            the model is broken.
        TypeError: An attribute has the wrong type, or a function was passed without a world.
    """
    if callable(schedules):
        ranks = values.whole(world, "world", 1, 2**31 - 1)
        schedules = Custom("", schedules, "").plans(ranks, root)
    wrong = _engine.check(schedules)
    if wrong:
        raise ScheduleError(wrong)


class Custom:
    """An algorithm written in Python.

    It is checked for each world, root and hosts when it is first used with them. Calling it returns the schedule of
    one rank, and raises ScheduleError if the algorithm is wrong.

    Attributes:
        name: The name of the algorithm.
        function: The function that makes the schedules.
        collective: The collective that it performs.
        takes: Which of "root" and "hosts" the function has as parameters.
    """

    def __init__(self, name: str, function: Function, collective: str) -> None:
        self.name = name
        self.function = function
        self.collective = collective
        self.takes = _parameters(function)
        self._heaviest: dict[Place, int] = {}  # for the places that were checked

    def __call__(self, world: int, rank: int, root: int = 0, hosts: Hosts | None = None) -> Schedule:
        """Returns the schedule of one rank, proved."""
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in [0, {world}), not {rank}")
        self.heaviest_round(world, root, hosts)
        return self.plan(world, rank, root, hosts)

    def heaviest_round(self, world: int, root: int = 0, hosts: Hosts | None = None) -> int:
        """Returns the most chunks that any rank sends in one round. Proves the schedules first."""
        place = self._place(world, root, hosts)
        if place not in self._heaviest:
            self._heaviest[place] = self._proved(place)
        return self._heaviest[place]

    def order(self, world: int, root: int = 0, hosts: Hosts | None = None) -> Order:
        """Returns the order in which it combines the values of the ranks in this world."""
        return _engine.order_of(self.plans(world, root, hosts))

    def plan(self, world: int, rank: int, root: int = 0, hosts: Hosts | None = None) -> Schedule:
        """Returns the schedule of one rank, without proving it."""
        given: dict[str, Any] = {}
        if "root" in self.takes:
            given["root"] = root
        if "hosts" in self.takes:
            given["hosts"] = [list(ranks) for ranks in hosts or [range(world)]]
        try:
            plan = self.function(world, rank, **given)
        except Exception as error:
            asked = f"algorithm {self.name!r}, called for rank {rank} of {world},"
            raise ScheduleError(f"{asked} raised {_said(error)}") from error
        if not isinstance(plan, Schedule):
            asked = f"algorithm {self.name!r}, called for rank {rank} of {world},"
            raise ScheduleError(f"{asked} must return a Schedule, not {type(plan).__name__}")
        if self.collective and plan.collective != self.collective:
            raise ScheduleError(
                f"{self.name!r} returned a schedule for {plan.collective}, not {self.collective}"
            )
        return plan

    def plans(self, world: int, root: int = 0, hosts: Hosts | None = None) -> list[Schedule]:
        """Returns the schedules of all ranks, without proving them."""
        return [self.plan(world, rank, root, hosts) for rank in range(world)]

    def _place(self, world: int, root: int, hosts: Hosts | None) -> Place:
        grouped = hosts if hosts and "hosts" in self.takes else ()
        return world, root if "root" in self.takes else 0, tuple(map(tuple, grouped))

    def _proved(self, place: Place) -> int:
        plans = self.plans(*place)
        try:
            check(plans)
        except (TypeError, AttributeError) as error:
            raise ScheduleError(f"algorithm {self.name!r} returned an invalid schedule: {error}") from error
        except ScheduleError as error:
            raise ScheduleError(f"algorithm {self.name!r} is wrong for {place[0]} ranks: {error}") from error
        return max((each.chunks_sent() for plan in plans for each in plan.rounds), default=0)


registered: dict[tuple[str, str], Custom] = {}
"""The registered algorithms by collective and name."""


def register(name: str, function: Function, collective: str = "all_reduce") -> Custom:
    """Makes an algorithm written in Python available by name.

    Registering a name again replaces the algorithm.

    Args:
        name: The name of the algorithm. The catalogue must not have it for this collective.
        function: A function ``(world, rank) -> Schedule``. It must be pure: the same arguments give the same schedule.
            If it has parameters called ``root`` or ``hosts``, they receive the root of the call and the ranks of each
            host.
        collective: The collective that it performs.

    Returns:
        The registered algorithm.

    Raises:
        ValueError: There is no such collective, or the catalogue already has the name.
        TypeError: ``function`` is not callable.
    """
    values.text(name, "name")
    if not callable(function):
        raise TypeError(
            f"function must be a function (world, rank) -> Schedule, not {type(function).__name__}"
        )
    built_in = [row[1] for row in _engine.catalogue() if row[0] == collective]
    if not built_in:
        raise ValueError(f"no collective is called {collective!r}")
    if name in built_in:
        raise ValueError(f"the catalogue already has an algorithm called {name!r} for {collective}")
    registered[collective, name] = Custom(name, function, collective)
    return registered[collective, name]


def custom(name: str, collective: str = "all_reduce") -> Custom | None:
    """Returns the registered algorithm of that name, or None."""
    return registered.get((collective, name))


def is_in_a_file(name: str) -> bool:
    """Returns whether the name of an algorithm names a function in a Python file, as in ``"my.py:ring_of_pairs"``."""
    path, _, function = name.rpartition(":")
    return path.endswith(".py") and function.isidentifier()


def load(name: str, collective: str | None = None, world: int = 2) -> Custom:
    """Registers an algorithm from a Python file.

    Args:
        name: The path of the file and the name of a function in it, as in ``"my.py:ring_of_pairs"``. The name may also
            be that of a value that :func:`register` returned. The algorithm is registered under this whole name.
        collective: The collective that it performs. None takes it from the function's schedule for ``world`` ranks.
        world: The number of ranks for that schedule.

    Raises:
        ValueError: There is no such file or function, the file cannot be run, or the catalogue already has the name.
        ScheduleError: The function does not return a schedule for this world.
    """
    path, _, attribute = name.rpartition(":")
    if not is_in_a_file(name):
        raise ValueError(f"{name!r} does not name a function in a Python file, as my.py:ring_of_pairs does")
    found = _names_in(path)
    value = found.get(attribute)
    function = value.function if isinstance(value, Custom) else value
    if not callable(function):
        raise ValueError(f"{path} has no function called {attribute!r}")
    return register(name, function, collective or Custom(name, function, "").plan(world, 0).collective)


_files: dict[Path, dict[str, Any]] = {}
_running = threading.RLock()  # held to run a file, which may load others


def _names_in(path: str) -> dict[str, Any]:
    """Returns the names that a Python file defines. Each file runs only once."""
    file = Path(path).resolve()
    with _running:
        if file not in _files:
            _run(path, file)
        return _files[file]


def _run(path: str, file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{path}: there is no such file")
    before = list(sys.path)
    sys.path.insert(0, str(file.parent))  # as for a script, which may import modules from its own folder
    try:
        _files[file] = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be run: {_said(error)}") from error
    finally:
        sys.path[:] = before


def _forget_after_fork() -> None:
    global _running
    _running = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)
