"""Maps the algorithm that a call names to the engine's handle."""

from __future__ import annotations

from collections import defaultdict

from ringreduce import _engine, schedules
from ringreduce._engine import values
from ringreduce.annotations import Algorithm
from ringreduce.schedules.registry import hosts_of

Key = tuple[str, Algorithm | schedules.Custom, int, bool]

AUTO = -1  # the engine's handle of "auto"
UNKNOWN = -1  # the engine's answer to a name that it does not know; it does know "nccl"


class Handles:
    """A communicator's handles of algorithms. Makes a schedule written in Python, and hands it over, only once."""

    def __init__(self, engine: _engine.Communicator) -> None:
        self._engine = engine
        self._known: dict[Key, int] = {}
        # By collective: handles of names in the catalogue, which a registered algorithm cannot take.
        self.built_in = defaultdict[str, dict[str, int]](dict)
        self._functions: dict[tuple[str, Algorithm], schedules.Custom] = {}

    def find(self, collective: str, algorithm: Algorithm, root: int = 0, in_order: bool = False) -> int:
        """Returns the handle of a name or function.

        Args:
            in_order: whether the engine must know in which order it combines the ranks' values.

        Raises:
            ValueError: the collective has no algorithm of this name.
            ScheduleError: the function's schedules are wrong.
        """
        if algorithm == "auto":
            return AUTO
        if isinstance(algorithm, str) and (known := self.built_in[collective].get(algorithm)) is not None:
            return known
        if not isinstance(algorithm, str) and not callable(algorithm):
            kind = type(algorithm).__name__
            raise TypeError(f"algorithm must be a name or a function (world, rank) -> Schedule, not {kind}")
        custom = self._custom(collective, algorithm)
        if custom is None or "root" not in custom.takes:
            root = 0
        else:
            root = values.whole(root, "root", 0, self._engine.size - 1)
        in_order = in_order or self._engine.reproducible
        key = (collective, custom or algorithm, root, custom is not None and in_order)
        handle = self._known.get(key)
        if handle is None:
            handle = self._known[key] = self._new(collective, algorithm, custom, root, in_order)
            if custom is None:
                self.built_in[collective][str(algorithm)] = handle
        return handle

    def _custom(self, collective: str, algorithm: Algorithm) -> schedules.Custom | None:
        """Returns the algorithm if it is written in Python. A name that is registered again gets another Custom."""
        if isinstance(algorithm, str):
            return schedules.custom(algorithm, collective)
        key = (collective, algorithm)
        if key not in self._functions:
            name = getattr(algorithm, "__name__", "custom")
            self._functions[key] = schedules.Custom(name, algorithm, collective)
        return self._functions[key]

    def _new(
        self,
        collective: str,
        algorithm: Algorithm,
        custom: schedules.Custom | None,
        root: int,
        in_order: bool,
    ) -> int:
        if custom is not None:
            return self._add(custom, root, in_order)
        handle = _engine.algorithm_handle(collective, str(algorithm))
        if handle == UNKNOWN:
            known = ", ".join(entry.name for entry in schedules.algorithms(collective))
            raise ValueError(
                f"algorithm must be 'auto', a registered name or one of {known}, not {algorithm!r}"
            )
        # All ranks get here at their first call of it.
        if algorithm == "synthesised" and self._engine.synthesis is None and self._engine.links.world:
            self._engine.synthesise()
        return handle

    def _add(self, custom: schedules.Custom, root: int, in_order: bool) -> int:
        size, hosts = self._engine.size, self.hosts()
        return self._engine.add_schedule(
            custom.name, custom(size, self._engine.rank, root, hosts), custom.heaviest_round(size, root, hosts),
            custom.order(size, root, hosts) if in_order else "any",
        )  # fmt: skip

    def hosts(self) -> list[list[int]]:
        """Returns the ranks of each host."""
        return hosts_of(self._engine.machines or [0] * self._engine.size)
