"""Runs a command as a session of its own, and ends it with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

OUTPUT = 256 << 10  # bytes of the output of one command that a log keeps: the first and the last half
PATIENCE = 3.0  # seconds for stacks to be written and processes to end


def processes_of(session: int) -> list[int]:
    """Returns the processes of a session that have not ended, the youngest first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(entry.name))
    return sorted(found, reverse=True)


def send(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def end_session(session: int) -> int:
    """Ends all processes of a session, and returns how many are left: those that are stuck in the kernel.

    Each Python among them first writes the stacks of its threads, because PYTHONFAULTHANDLER is set.
    """
    end = time.monotonic() + PATIENCE
    for process in processes_of(session)[:20]:  # one after the other, so that their stacks do not mix
        send(process, signal.SIGABRT)
        while process in processes_of(session) and time.monotonic() < end:
            time.sleep(0.01)
    end = max(end, time.monotonic() + PATIENCE / 3)
    while (left := processes_of(session)) and time.monotonic() < end:
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.02)
    return len(left)


def shorten(log: Path, begin: int) -> None:
    """Cuts out the middle of what a log has from `begin` on, if that is more than OUTPUT."""
    size = log.stat().st_size
    if size - begin <= OUTPUT:
        return
    with log.open("r+b") as file:
        file.seek(size - OUTPUT // 2)
        end = file.read(OUTPUT // 2)
        file.seek(begin + OUTPUT // 2)
        file.write(f"\n... {size - begin - OUTPUT:,} bytes are left out ...\n".encode() + end)
        file.truncate()


class Session:
    """A command that runs. Its output goes to the end of a log as it is written."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self.log, self.begin = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )

    def wait(self, until: Callable[[], object]) -> int | None:
        """Returns the exit status, or None once until() is true. A log that runs away ends it, too."""
        while (status := self.child.poll()) is None:
            if until() or self.log.stat().st_size - self.begin > 100 * OUTPUT:
                return None
            time.sleep(0.02)
        return status

    def output(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self.begin)
            return file.read().decode(errors="replace")

    def end(self) -> int:
        """Ends what is left of it, and returns the number of processes that could not be ended."""
        left = end_session(self.child.pid)
        self.child.poll()
        shorten(self.log, self.begin)
        return left
