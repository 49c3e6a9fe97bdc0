"""One clock for all ranks, and starts at the same instant on all of them.

Ranks of a host read the same monotonic clock. Between hosts, ranks measure how far their clocks are from rank 0's, and
how fast they drift away: the offset by the fastest of several exchanges (Cristian 1989), the drift by regression over
many of these (Jones and Koenig; Hunold and Carpen-Amarie, "Hierarchical clock synchronization in MPI", CLUSTER 2018).

An instant is agreed anew for each iteration, as in their round-time scheme: far enough ahead that all ranks know of it
in time, but not much further.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from ringreduce.bench.problem import Array
from ringreduce.communicator import Communicator

__all__ = ["Clock", "Start"]

PINGS = 20  # exchanges for one offset
KEPT = 200  # offsets that the drift is taken from
SPAN = 1.0  # seconds that they must cover
SLEEP_FROM = 2e-3  # seconds to an instant from which on a core is left to others
SLACK = (2e-6, 0.5)  # seconds: the least and the most that an instant is put ahead


def clock_name() -> str:
    """Equal for processes that read the same monotonic clock."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time")
    try:
        return f"{boot.read_text()} {os.readlink(space)}"
    except OSError:  # not Linux, or an old one: by the host's name
        return os.uname().nodename


class Clock:
    """This rank's clock beside rank 0's. Every rank makes one, and calls ``synchronise`` now and then."""

    def __init__(
        self, comm: Communicator, read: Callable[[], float] = time.perf_counter, name: str | None = None
    ) -> None:
        self.read, self._comm = read, comm
        names = comm.all_gather_object(clock_name() if name is None else name)
        first = [names.index(one) for one in names]
        self._leader = first[comm.rank]
        self._leaders = sorted(set(first) - {0})
        self._points: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._line = 0.0, 0.0, 0.0  # offset, drift, and the local time from which the drift counts
        if self._leaders:
            end = read() + SPAN
            while comm.all_reduce(np.array([float(read() < end)]), "max")[0]:
                self.synchronise()
                time.sleep(SPAN / 20)

    def how(self) -> str:
        if not self._leaders:
            return "all ranks read one monotonic clock"
        return f"{1 + len(self._leaders)} clocks, aligned with rank 0's by the fastest of {PINGS} exchanges, and drift"

    def synchronise(self) -> None:
        """Measures offsets anew, where there are several clocks. Every rank calls it."""
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
        if last - when[0] < 0.9 * SPAN:  # too short for a drift
            return float(offsets[-1]), 0.0, last
        line = stats.linregress(when - last, offsets)
        return float(line.intercept), float(line.slope), last

    def shared(self, local: float) -> float:
        """What rank 0's clock shows when this one shows that."""
        offset, drift, since = self._line
        return local + offset + drift * (local - since)

    def local(self, shared: float) -> float:
        """What this clock shows when rank 0's shows that."""
        offset, drift, since = self._line
        return since + (shared - offset - since) / (1 + drift)


class Start:
    """Starts at an instant that all ranks agree on.

    A rank with a core of its own spins until then. Ranks that share cores yield theirs to each other meanwhile: one of
    a core's ranks begins at the instant, and the others when that one waits. No rank could begin earlier.

    Attributes:
        slack: seconds from the moment at which all are ready to the instant. The same on all ranks.
        first: by host, the ranks that can begin at once: as many as there are cores for them.
        crowded: whether some host has more ranks than cores.
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
        """The instant at which all begin, on this rank's clock. Every rank calls it when it is ready.

        Also returns how long before the instant all had to be ready for this rank to know of it in time.
        """
        clock, room = self.clock, self._room
        room[0] = clock.shared(clock.read())
        self._comm.all_reduce(room, "max")
        ready = clock.local(float(room[0]))
        return ready + self.slack, clock.read() - ready

    def learn(self, needed: Array) -> None:
        """Sets how far ahead instants are put, by what the slowest rank needed in each iteration.

        What few of them needed does not count: then something else had a rank's core.
        """
        self.slack = float(np.clip(1.5 * np.quantile(needed, 0.9), *SLACK))

    def wait(self, at: float) -> float:
        """Returns at that instant, or at once if it is over: what the clock shows then."""
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
        """By iteration, how late the ranks began that could begin at once; ``late`` has a line for each rank."""
        worst = [np.sort(late[ranks], axis=0)[count - 1] for ranks, count in self.first]
        latest: Array = np.max(worst, axis=0)
        return latest
