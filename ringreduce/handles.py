"""From the algorithm that a call names to the engine's number for it."""

from __future__ import annotations

from collections.abc import Callable

from ringreduce import _engine, schedules

Algorithm = str | Callable[[int, int], schedules.Schedule]

AUTO = -1  # the engine's
UNKNOWN = -1  # what the engine says of a name that it does not know; of "nccl" it knows


class Handles:
    """A communicator's handles of algorithms. Schedules written in Python are made, and handed over, once."""

    def __init__(self, engine: _engine.Communicator) -> None:
        self._engine = engine
        self._known: dict[tuple[str, Algorithm | schedules.Custom], int] = {}

    def find(self, collective: str, algorithm: Algorithm) -> int:
        """The handle of a name or function.

        Raises:
            ValueError: no algorithm of the collective is called so.
            ScheduleError: the function's schedules are wrong.
        """
        if not isinstance(algorithm, str) and not callable(algorithm):
            kind = type(algorithm).__name__
            raise TypeError(f"algorithm must be a name or a function (world, rank) -> Schedule, not {kind}")
        if algorithm == "auto":
            return AUTO
        # A name that is registered anew stands for another algorithm.
        registered = schedules.custom(algorithm, collective) if isinstance(algorithm, str) else None
        key = (collective, registered or algorithm)
        handle = self._known.get(key)
        if handle is not None:
            return handle
        handle = _engine.algorithm_handle(collective, algorithm) if isinstance(algorithm, str) else UNKNOWN
        if handle == UNKNOWN:
            handle = self._add(registered or _custom(collective, algorithm))
        self._known[key] = handle
        return handle

    def _add(self, custom: schedules.Custom) -> int:
        size = self._engine.size
        return self._engine.add_schedule(
            custom.name, custom(size, self._engine.rank), custom.heaviest_round(size),
            self._engine.reproducible and custom.keeps_rank_order(size),
        )  # fmt: skip


def _custom(collective: str, algorithm: Algorithm) -> schedules.Custom:
    if not isinstance(algorithm, str):
        return schedules.Custom(getattr(algorithm, "__name__", "custom"), algorithm, collective)
    known = ", ".join(entry.name for entry in schedules.algorithms(collective))
    raise ValueError(f"algorithm must be 'auto', a registered name or one of {known}, not {algorithm!r}")
