"""Starts all ranks at the same instant, on a clock that they share (:class:`ringreduce.communicator.clocks.Clock`).

The ranks agree on a new instant for each iteration, as in the round-time scheme of Hunold and Carpen-Amarie
("Hierarchical clock synchronization in MPI", CLUSTER 2018). It is far enough ahead that all ranks know it in time, but
not much further.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from ringreduce import _engine
from ringreduce.communicator import Communicator
from ringreduce.communicator.clocks import Clock
from ringreduce.studies.bench.problem import Array

__all__ = ["Start"]

SLEEP_FROM = 2e-3  # seconds: ranks sleep if an instant is further ahead than this
SLACK = (2e-6, 0.5)  # seconds: the least and the most that an instant lies ahead


class Start:
    """Starts all ranks at an instant that they agree on.

    A rank that has a core to itself spins until then. Ranks that share a core yield it to each other while they wait.
    One of them begins at the instant, and the others begin when that one waits. They could not begin earlier.

    Attributes:
        slack: Seconds between the moment when all ranks are ready and the instant. The same on all ranks.
        first: For each host, its ranks and how many of them can begin at once (at most one per core).
        crowded: Whether some host has more ranks than cores.
    """

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        self.clock = clock
        self._comm, self._room = comm, np.zeros(1)
        self.slack = 1e-4
        found: list[tuple[set[int], int]] = comm.all_gather_object(
            (os.sched_getaffinity(0), _engine.core_quota())
        )
        self.first = [(ranks, self._busy_at_once([found[r] for r in ranks])) for ranks in comm.hosts]
        self.crowded = any(count < len(ranks) for ranks, count in self.first)

    @staticmethod
    def _busy_at_once(found: Sequence[tuple[set[int], int]]) -> int:
        """Returns how many ranks of a host can run at the same time, given the cores and the limit of each."""
        quotas = [quota for _, quota in found if quota]
        return min(len(found), len(set.union(*(cores for cores, _ in found))), *quotas)

    def agree(self) -> tuple[float, float]:
        """Agrees on an instant, and returns it on this rank's clock. Every rank calls it when it is ready.

        Also returns the time that passed between the moment when all ranks were ready and this rank's return.
        """
        clock, room = self.clock, self._room
        room[0] = clock.shared(clock.read())
        self._comm.all_reduce(room, "max")
        ready = clock.local(float(room[0]))
        return ready + self.slack, clock.read() - ready

    def learn(self, needed: Array) -> None:
        """Sets how far ahead instants lie, given the time that the slowest rank needed in each iteration.

        The largest tenth does not count, because another process probably had the core of a rank.
        """
        self.slack = float(np.clip(1.5 * np.quantile(needed, 0.9), *SLACK))

    def wait(self, at: float) -> float:
        """Waits until that instant, or returns at once if it has passed. Returns the time on this rank's clock."""
        read = self.clock.read
        now = read()
        if at - now > SLEEP_FROM:
            time.sleep(at - now - SLEEP_FROM / 2)
        if self.crowded:
            while (now := read()) < at:
                os.sched_yield()
        else:
            while (now := read()) < at:
                pass
        return now

    def lateness(self, late: Array) -> Array:
        """Returns how late each iteration began, among the ranks that could begin at once.

        ``late`` has a row for each rank and a column for each iteration.
        """
        worst = [np.sort(late[ranks], axis=0)[count - 1] for ranks, count in self.first]
        latest: Array = np.max(worst, axis=0)
        return latest
