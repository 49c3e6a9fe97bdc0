"""A clock that all ranks share, and starts at the same instant on all ranks.

Ranks of a host read the same monotonic clock. Between hosts, ranks measure the offset of their clock from rank 0's and
its drift. The offset comes from the fastest of several exchanges (Cristian 1989), the drift from a regression over many
offsets (Jones and Koenig; Hunold and Carpen-Amarie, "Hierarchical clock synchronization in MPI", CLUSTER 2018).

The ranks agree on a new instant for each iteration, as in the round-time scheme of the last paper. It is far enough
ahead that all ranks know it in time, but not much further.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from ringreduce.communicator import Communicator
from ringreduce.studies.bench.problem import Array

__all__ = ["Clock", "Start"]

PINGS = 20  # exchanges for one offset
KEPT = 200  # offsets that determine the drift
SPAN = 1.0  # seconds that these offsets must cover
SLEEP_FROM = 2e-3  # seconds: ranks sleep if an instant is further ahead than this
SLACK = (2e-6, 0.5)  # seconds: the least and the most that an instant lies ahead


def clock_name() -> str:
    """Returns a name that is equal in processes that read the same monotonic clock."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time")
    try:
        return f"{boot.read_text()} {os.readlink(space)}"
    except OSError:  # not Linux, or an old kernel
        return os.uname().nodename


class Clock:
    """This rank's clock, and its offset from rank 0's. Every rank creates one, and calls ``synchronise`` repeatedly."""

    def __init__(
        self, comm: Communicator, read: Callable[[], float] = time.perf_counter, name: str | None = None
    ) -> None:
        self.read, self._comm = read, comm
        names = comm.all_gather_object(clock_name() if name is None else name)
        first = [names.index(one) for one in names]
        self._leader = first[comm.rank]
        self._leaders = sorted(set(first) - {0})
        self._points: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._line = 0.0, 0.0, 0.0  # offset, drift, and the local time at which the offset applies
        if self._leaders:
            end = read() + SPAN
            while comm.all_reduce(np.array([float(read() < end)]), "max")[0]:
                self.synchronise()
                time.sleep(SPAN / 20)

    def how(self) -> str:
        if not self._leaders:
            return "all ranks read one monotonic clock"
        return f"{1 + len(self._leaders)} clocks, aligned with rank 0's (fastest of {PINGS} exchanges, and drift)"

    def synchronise(self) -> None:
        """Measures the offsets again, if there are several clocks. Every rank must call it."""
        if not self._leaders:
            return
        for leader in self._leaders:
            if self._comm.rank == leader:
                self._points.append(self._ask())
            elif self._comm.rank == 0:
                self._answer(leader)
        lines = self._comm.all_gather(np.array(self._fitted()))
        offset, drift, since = lines.reshape(-1, 3)[self._leader]
        self._line = float(offset), float(drift), float(since)

    def _ask(self) -> tuple[float, float]:
        room, best, found = np.zeros(1), float("inf"), (0.0, 0.0)
        for _ in range(PINGS):
            sent = self.read()
            self._comm.send(room, 0)
            self._comm.recv(room, 0)
            back = self.read()
            if back - sent < best:
                middle = (sent + back) / 2
                best, found = back - sent, (middle, float(room[0]) - middle)
        return found

    def _answer(self, leader: int) -> None:
        room = np.zeros(1)
        for _ in range(PINGS):
            self._comm.recv(room, leader)
            room[0] = self.read()
            self._comm.send(room, leader)

    def _fitted(self) -> tuple[float, float, float]:
        if not self._points:
            return 0.0, 0.0, 0.0
        when, offsets = np.array(self._points).T
        last = float(when[-1])
        if last - when[0] < 0.9 * SPAN:  # too short to determine a drift
            return float(offsets[-1]), 0.0, last
        line = stats.linregress(when - last, offsets)
        return float(line.intercept), float(line.slope), last

    def shared(self, local: float) -> float:
        """Converts a time of this rank's clock to rank 0's clock."""
        offset, drift, since = self._line
        return local + offset + drift * (local - since)

    def local(self, shared: float) -> float:
        """Converts a time of rank 0's clock to this rank's clock."""
        offset, drift, since = self._line
        return since + (shared - offset - since) / (1 + drift)


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
        cores: list[set[int]] = comm.all_gather_object(os.sched_getaffinity(0))
        self.first = [
            (ranks, min(len(ranks), len(set.union(*(cores[r] for r in ranks))))) for ranks in comm.hosts
        ]
        self.crowded = any(count < len(ranks) for ranks, count in self.first)

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
