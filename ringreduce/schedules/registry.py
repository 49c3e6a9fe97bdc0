"""Algorithms written in Python: proved, registered, and read from files."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringreduce._engine import schedules as _engine
from ringreduce._engine import values
from ringreduce.schedules.model import Schedule, ScheduleError

Function = Callable[..., Schedule]
"""An algorithm written in Python: ``(world, rank) -> Schedule``.

If it has a parameter ``root``, it gets the root of broadcast, reduce, gather and scatter; if it has a parameter
``hosts``, the ranks of each host, as in :attr:`Communicator.hosts`.
"""

Hosts = Sequence[Sequence[int]]
Place = tuple[
    int, int, tuple[tuple[int, ...], ...]
]  # world, root and hosts, as far as the function takes them


def hosts_of(groups: Sequence[int]) -> list[list[int]]:
    """The ranks of each host, of the host's number of each rank."""
    hosts: dict[int, list[int]] = {}
    for rank, host in enumerate(groups):
        hosts.setdefault(host, []).append(rank)
    return list(hosts.values())


def _parameters(function: Function) -> tuple[str, ...]:
    """Which of root and hosts the function takes."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of what is not written in Python
        return ()
    return tuple(name for name in ("root", "hosts") if name in known)


def _said(error: BaseException) -> str:
    """An error of somebody else's code, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check(schedules: Sequence[Schedule] | Function, world: int | None = None, root: int = 0) -> None:
    """Proves schedules right by running all ranks on symbols, with sends that wait for their receivers.

    Args:
        schedules: Those of all ranks in rank order, or a function ``(world, rank) -> Schedule``.
        world: How many ranks the function is to be called for.
        root: The root that the function is to be called for, if it takes one.

    Raises:
        ScheduleError: A result would be incomplete, wrong or different between ranks, ranks would block each
            other, or a rule of the model is broken.
        TypeError: An attribute has the wrong type, or a function came without a world.
    """
    if callable(schedules):
        ranks = values.whole(world, "world", 1, 2**31 - 1)
        schedules = Custom("", schedules, "").plans(ranks, root)
    wrong = _engine.check(schedules)
    if wrong:
        raise ScheduleError(wrong)


class Custom:
    """An algorithm written in Python, checked for each world, root and hosts when it is first used there.

    Calling it gives one rank's schedule, and raises ScheduleError if the algorithm is wrong there.

    Attributes:
        takes: which of "root" and "hosts" the function has as parameters.
    """

    def __init__(self, name: str, function: Function, collective: str) -> None:
        self.name = name
        self.function = function
        self.collective = collective
        self.takes = _parameters(function)
        self._heaviest: dict[Place, int] = {}  # of those that were checked

    def __call__(self, world: int, rank: int, root: int = 0, hosts: Hosts | None = None) -> Schedule:
        """The schedule of one rank."""
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in [0, {world}), not {rank}")
        self.heaviest_round(world, root, hosts)
        return self.plan(world, rank, root, hosts)

    def heaviest_round(self, world: int, root: int = 0, hosts: Hosts | None = None) -> int:
        """The most chunks that any rank sends in one round."""
        place = self._place(world, root, hosts)
        if place not in self._heaviest:
            self._heaviest[place] = self._proved(place)
        return self._heaviest[place]

    def keeps_rank_order(self, world: int, root: int = 0, hosts: Hosts | None = None) -> bool:
        """Whether it adds all ranks' values in rank order and rounds once, for this world."""
        return _engine.keeps_rank_order(self.plans(world, root, hosts))

    def plan(self, world: int, rank: int, root: int = 0, hosts: Hosts | None = None) -> Schedule:
        """The schedule of one rank as the function has it, unproved."""
        given: dict[str, Any] = {}
        if "root" in self.takes:
            given["root"] = root
        if "hosts" in self.takes:
            given["hosts"] = [list(ranks) for ranks in hosts or [range(world)]]
        try:
            plan = self.function(world, rank, **given)
        except Exception as error:
            asked = f"algorithm {self.name!r}, asked for rank {rank} of {world},"
            raise ScheduleError(f"{asked} raised {_said(error)}") from error
        if not isinstance(plan, Schedule):
            asked = f"algorithm {self.name!r}, asked for rank {rank} of {world},"
            raise ScheduleError(f"{asked} returned no Schedule, but {type(plan).__name__}")
        if self.collective and plan.collective != self.collective:
            raise ScheduleError(f"{self.name!r} plans {plan.collective}, not {self.collective}")
        return plan

    def plans(self, world: int, root: int = 0, hosts: Hosts | None = None) -> list[Schedule]:
        """Those of all ranks, unproved."""
        return [self.plan(world, rank, root, hosts) for rank in range(world)]

    def _place(self, world: int, root: int, hosts: Hosts | None) -> Place:
        grouped = hosts if hosts and "hosts" in self.takes else ()
        return world, root if "root" in self.takes else 0, tuple(map(tuple, grouped))

    def _proved(self, place: Place) -> int:
        plans = self.plans(*place)
        try:
            check(plans)
        except (TypeError, AttributeError) as error:
            raise ScheduleError(f"algorithm {self.name!r} returned what is no schedule: {error}") from error
        except ScheduleError as error:
            raise ScheduleError(f"algorithm {self.name!r} is wrong for {place[0]} ranks: {error}") from error
        return max((each.chunks_sent() for plan in plans for each in plan.rounds), default=0)


registered: dict[tuple[str, str], Custom] = {}
"""By collective and name."""


def register(name: str, function: Function, collective: str = "all_reduce") -> Custom:
    """Makes an algorithm written in Python available by name; registering a name again replaces it.

    Args:
        name: The name to ask for it by; none of the catalogue's for this collective.
        function: ``(world, rank) -> Schedule``. It must be pure: the same arguments, the same schedule. One that has
            parameters called ``root`` or ``hosts`` gets these, too: the root of the call, and the ranks of each host.
        collective: The collective that it performs.

    Returns:
        The algorithm as it is registered.

    Raises:
        ValueError: There is no such collective, or the catalogue has the name already.
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
        raise ValueError(f"the catalogue has an algorithm called {name!r} for {collective} already")
    registered[collective, name] = Custom(name, function, collective)
    return registered[collective, name]


def custom(name: str, collective: str = "all_reduce") -> Custom | None:
    """The registered algorithm of that name, or None."""
    return registered.get((collective, name))


def is_in_a_file(name: str) -> bool:
    """Whether an algorithm's name is that of a function in a Python file."""
    path, _, function = name.rpartition(":")
    return path.endswith(".py") and function.isidentifier()


def load(name: str, collective: str | None = None, world: int = 2) -> Custom:
    """Registers an algorithm that is a function in a Python file.

    Args:
        name: The path of the file and the function in it, as in ``"my.py:ring_of_pairs"``. The function may also be
            what :func:`register` has returned there. The algorithm is registered by this name.
        collective: The collective that it performs; None: the function is asked, for one of ``world`` ranks.

    Raises:
        ValueError: There is no such file or function, the file cannot be run, or the catalogue has the name already.
        ScheduleError: The function makes no schedule for this world.
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


def _names_in(path: str) -> dict[str, Any]:
    """What a Python file defines; it runs once."""
    file = Path(path).resolve()
    if file not in _files:
        if not file.is_file():
            raise ValueError(f"{path}: there is no such file")
        before = list(sys.path)
        sys.path.insert(0, str(file.parent))  # as for a script: it may import what lies beside it
        try:
            _files[file] = runpy.run_path(str(file))
        except (Exception, SystemExit) as error:
            raise ValueError(f"{path} cannot be run: {_said(error)}") from error
        finally:
            sys.path[:] = before
    return _files[file]
