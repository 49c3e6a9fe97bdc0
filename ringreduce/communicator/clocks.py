"""A clock that all ranks share.

Ranks of a host read the same monotonic clock. Between hosts, ranks measure the offset of their clock from rank 0's and
its drift. The offset comes from the fastest of several exchanges (Cristian, "Probabilistic clock synchronization",
1989), and its error is at most half of that exchange's time. The drift comes from a regression over many offsets (Jones
and Koenig; Hunold and Carpen-Amarie, "Hierarchical clock synchronization in MPI", CLUSTER 2018).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ringreduce.communicator import Communicator

__all__ = ["Clock"]

PINGS = 20  # exchanges for one offset
KEPT = 200  # offsets that determine the drift
SPAN = 1.0  # seconds that these offsets must cover, unless the caller says otherwise
TAG = 0x71ED  # of these messages


def name_of(read: Callable[[], float], rank: int) -> str:
    """Returns a name that is equal on ranks that read the same monotonic clock."""
    if read not in (time.monotonic, time.perf_counter):
        return f"of rank {rank}"
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time")
    try:
        return f"{read.__name__} {boot.read_text()} {os.readlink(space)}"
    except OSError:  # not Linux, or an old kernel
        return f"{read.__name__} {os.uname().nodename}"


class Clock:
    """This rank's clock, and its offset from rank 0's. Every rank creates one, and calls ``synchronise`` repeatedly.

    Args:
        comm: the group.
        read: returns this rank's time in seconds.
        name: a name that is equal on ranks with the same clock. None compares the hosts, and takes any ``read`` but
            those of Python's ``time`` for a clock of its own.
        span: the seconds that offsets must cover before they determine a drift. The constructor waits for them.
    """

    def __init__(
        self,
        comm: Communicator,
        read: Callable[[], float] = time.perf_counter,
        name: str | None = None,
        span: float = SPAN,
    ) -> None:
        self.read, self._comm, self._span = read, comm, span
        names = comm.all_gather_object(name or name_of(read, comm.rank))
        first = [names.index(one) for one in names]
        self._leader = first[comm.rank]
        self._leaders = sorted(set(first) - {0})
        self._points: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._line = 0.0, 0.0, 0.0  # offset, drift, and the local time at which the offset applies
        self.synchronise()
        if self._leaders:
            end = read() + span
            while comm.all_reduce(np.array([float(read() < end)]), "max")[0]:
                time.sleep(span / 20)
                self.synchronise()

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
            self._comm.send(room, 0, tag=TAG)
            self._comm.recv(room, 0, tag=TAG)
            back = self.read()
            if back - sent < best:
                middle = (sent + back) / 2  # where rank 0 most likely read its clock
                best, found = back - sent, (middle, float(room[0]) - middle)
        return found

    def _answer(self, leader: int) -> None:
        room = np.zeros(1)
        for _ in range(PINGS):
            self._comm.recv(room, leader, tag=TAG)
            room[0] = self.read()
            self._comm.send(room, leader, tag=TAG)

    def _fitted(self) -> tuple[float, float, float]:
        if not self._points:
            return 0.0, 0.0, 0.0
        when, offsets = np.array(self._points).T
        last = float(when[-1])
        if len(when) < 2 or last - when[0] < 0.9 * self._span:  # too short to determine a drift
            return float(offsets[-1]), 0.0, last
        drift, offset = np.polyfit(when - last, offsets, 1)
        return float(offset), float(drift), last

    def shared(self, local: float) -> float:
        """Converts a time of this rank's clock to rank 0's clock."""
        offset, drift, since = self._line
        return local + offset + drift * (local - since)

    def local(self, shared: float) -> float:
        """Converts a time of rank 0's clock to this rank's clock."""
        offset, drift, since = self._line
        return since + (shared - offset - since) / (1 + drift)
