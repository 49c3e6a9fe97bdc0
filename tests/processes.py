"""Rank processes that may die, and what became of each."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from ringreduce.start.orphans import end_with_parent

LIMIT = (
    200.0  # for all ranks of a test to end; below pytest's own limit, and above any stall of a busy machine
)
ROOT = Path(__file__).resolve().parents[1]


def python(*words: object, timeout: float = 200.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python at the repository's root, with these variables beside the environment's."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def on_ranks_of_a_command(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``ringreduce run`` with these arguments, as :func:`python` does."""
    return python("-m", "ringreduce", "run", *words, **more)


class Metronome:
    """Measures how other programs that keep the cores busy delay ranks.

    Attributes:
        latest: how late a sleeping thread woke up, at most.
        queued: how long the ranks together were ready to run, but had no core. Who sleeps gets a core sooner than who
            computes, so this can be much more.
    """

    BEAT = 0.01

    def __init__(self) -> None:
        self.latest, self._queued = 0.0, dict[int, float]()
        self._over = threading.Event()

    @property
    def queued(self) -> float:
        return sum(self._queued.values())

    def start(self, ranks: Iterable[int] = ()) -> None:
        """ranks: their process ids."""
        self.stop()
        self.latest, self._queued, self._over = 0.0, dict.fromkeys(ranks, 0.0), threading.Event()
        threading.Thread(target=self._measure, args=(self._over, self._queued), daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _measure(self, over: threading.Event, queued: dict[int, float]) -> None:
        for beat in itertools.count():
            if over.is_set():
                return
            began = time.monotonic()
            time.sleep(self.BEAT)
            self.latest = max(self.latest, time.monotonic() - began - self.BEAT)
            if beat % 5 == 0:
                for pid in queued:
                    queued[pid] = max(queued[pid], _time_in_queue(pid))

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *problem: Any) -> None:
        self.stop()


def _time_in_queue(pid: int) -> float:
    """The seconds that a process's threads were ready to run without a core. 0 if the kernel does not count them."""
    nanoseconds = 0
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has
                nanoseconds += int(schedstat.read_text().split()[1])
    return nanoseconds / 1e9


metronome = Metronome()


def within(seconds: float = 1.0) -> float:
    """The time from a death to the last survivor's exception. The design promises one second.

    It is longer by ten times what a sleeping thread was late while the ranks ran, because a message of a death makes
    several processes wake up in turn; and by what the ranks waited for a core.
    """
    return seconds + 10 * metronome.latest + metronome.queued


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _end_with_the_test(main: Callable[..., Any], *arguments: Any) -> None:
    """A rank that outlived a killed test would keep the test runner's pipes open, and whoever reads them waiting."""
    end_with_parent(os.getppid())
    main(*arguments)


class Processes:
    """A process for each rank; what it sends through its pipe, pickled, is its outcome."""

    def __init__(
        self, context: BaseContext, main: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
    ) -> None:
        """Starts ``main(*arguments, pipe)`` for each rank's arguments."""
        self.dead: dict[int, float] = {}
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for own in arguments:
            receiving, sending = context.Pipe(duplex=False)
            process: Any = context.Process(  # type: ignore[attr-defined]
                target=_end_with_the_test, args=(main, *own, sending)
            )
            process.start()
            sending.close()
            self.pipes.append(receiving)
            self.processes.append(process)
        metronome.start(process.pid for process in self.processes)

    def wait_until_all(self, came: Callable[[int], bool]) -> None:
        """Waits until it holds for every rank."""
        until = time.monotonic() + LIMIT
        for rank, process in enumerate(self.processes):
            while not came(rank):
                if time.monotonic() > until or not process.is_alive():
                    raise AssertionError(f"rank {rank} never came so far: {self.outcomes(1)}")
                time.sleep(0.001)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        self.dead[rank] = time.monotonic()
        os.kill(self.processes[rank].pid, number)

    def outcomes(self, limit: float = LIMIT) -> list[Any]:
        """Of all ranks; None for one that ended without a word. None of them may hang."""
        until = time.monotonic() + limit
        found: list[Any] = []
        try:
            for rank, pipe in enumerate(self.pipes):
                assert pipe.poll(max(until - time.monotonic(), 0)), f"rank {rank} hangs; so far: {found}"
                try:
                    found.append(pickle.loads(pipe.recv_bytes()))
                except EOFError:
                    found.append(None)
            for rank, process in enumerate(self.processes):
                process.join(max(until - time.monotonic(), 0))
                assert process.exitcode is not None, f"rank {rank} hangs at its end"
        finally:
            metronome.stop()
            for process in self.processes:
                process.kill()
                process.join()
            for pipe in self.pipes:
                pipe.close()
        return found


def free_stacks() -> None:
    """In the child of a fork: makes the C library free the memory of the parent's other threads.

    It keeps 40 MiB of stacks for later threads. What ends last and has more leaves no room for the others'.
    """
    before = threading.stack_size(64 << 20)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    threading.stack_size(before)


def gone(pid):
    """Or only waiting to be reaped, by whoever reaps orphans here."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def held() -> tuple[int, int, int, Counter[str]]:
    """Returns how many threads, mappings of this library's memory and files this process has, and which files."""
    gc.collect()
    files: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            files[os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]] += 1
        except OSError:  # that of the listing
            continue
    with open("/proc/self/maps") as maps:
        mapped = sum("ringreduce" in line and "memfd" in line for line in maps)
    return len(os.listdir("/proc/self/task")), mapped, sum(files.values()), files
