"""The stall check: names that some ranks have submitted and others have not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.frameworks.horovod.negotiation import FOREVER, JOIN, Negotiator, ranks_text
from ringreduce.frameworks.horovod.variables import Settings, logger

__all__ = ["StallCheck"]

Told = dict[tuple[int, str], float]  # the age in seconds of each pending name, by process set and name


class StallCheck:
    """Compares, in a thread and at long intervals, what the ranks wait for.

    Rank 0 logs a warning that names the missing ranks. After the shutdown time, all ranks end their operations with an
    error. The exchange has a communicator of its own, so it works while a rank computes and makes no calls.

    Args:
        comm: all ranks. Only this object uses it.
        settings: the times after which to warn and to shut down.
        sets: returns the process sets that this rank belongs to, by id.
    """

    def __init__(
        self, comm: Communicator, settings: Settings, sets: Callable[[], Mapping[int, Negotiator]]
    ) -> None:
        self._comm, self._settings, self._sets = comm, settings, sets
        self._every = min(settings.stall_warning, settings.stall_shutdown or settings.stall_warning) / 2
        self._warned: set[tuple[int, str]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ringreduce-stalls", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._over.wait(self._every):
                self._compare(self._comm.all_gather_object(self._own(), timeout=FOREVER))
        except Error:
            return  # a rank has left or died, of which its operations tell

    def _own(self) -> Told:
        now = time.monotonic()
        return {
            (number, name): now - request.submitted
            for number, negotiator in self._sets().items()
            for name, request in list(negotiator.pending.items())
        }

    def _compare(self, everybodys: list[Told]) -> None:
        """Takes in what every rank waits for."""
        sets = self._sets()
        stalled: dict[int, list[str]] = {}
        late: set[tuple[int, str]] = set()
        for key in dict.fromkeys(key for told in everybodys for key in told):
            number, name = key
            age = max(told.get(key, 0.0) for told in everybodys)
            if name == JOIN or number not in sets or age < self._settings.stall_warning:
                continue
            ranks = sets[number].ranks
            here = [rank for rank in ranks if key in everybodys[rank]]
            missing = [rank for rank in ranks if rank not in here and (0, JOIN) not in everybodys[rank]]
            if not missing:
                continue
            late.add(key)
            text = f"{name!r} was submitted by {ranks_text(here)}, but for {age:.0f} s not by {ranks_text(missing)}"
            if self._settings.stall_shutdown and age >= self._settings.stall_shutdown:
                stalled.setdefault(number, []).append(text)
            elif key not in self._warned and self._comm.rank == ranks[0]:
                logger.warning("stall: %s", text)
        self._warned = late
        for number, texts in stalled.items():
            sets[number].fail(
                f"stalled for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: {'; '.join(texts)}"
            )

    def close(self) -> None:
        self._over.set()
        self._comm._c.leave()
        self._thread.join(5)
