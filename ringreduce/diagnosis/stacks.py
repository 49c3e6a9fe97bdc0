"""What the Python threads of a process are doing: asked of the process itself if it answers, or read by py-spy."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Frame", "Thread", "address", "here", "of", "where"]

PATIENCE = 2.0  # seconds for a process to answer
LONGEST = 10.0  # seconds for py-spy
TRIES = 3  # a stack that changes while it is read cannot be understood


@dataclass(frozen=True)
class Frame:
    """A function that is running, and the line that it has reached."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} at {Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Thread:
    """A Python thread: its name, and its frames, the innermost first."""

    name: str
    frames: list[Frame]


def here() -> list[Thread]:
    """Returns the threads of this process, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    threads: list[Thread] = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        if ident == threading.get_ident():
            continue
        frames = []
        current = frame
        while current is not None:
            name = getattr(current.f_code, "co_qualname", current.f_code.co_name)  # from Python 3.11 on
            frames.append(Frame(name, current.f_code.co_filename, current.f_lineno or 0))
            current = current.f_back  # type: ignore[assignment]
        threads.append(Thread(names.get(ident, str(ident)), frames))
    return threads


def address(pid: int) -> str:
    """Returns the abstract Unix socket at which a process answers, if it does."""
    return f"\0ringreduce-report-{pid}"


def answer(connection: socket.socket) -> None:
    """Sends the threads of this process to another one of the same user."""
    _, user, _ = peer_of(connection)
    if user in (os.geteuid(), 0):
        connection.settimeout(PATIENCE)
        connection.sendall(json.dumps([asdict(thread) for thread in here()]).encode())


def peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """Returns the process, user and group at the other end."""
    kind = struct.Struct("3i")
    pid, user, group = kind.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, kind.size))
    return pid, user, group


def of(pid: int) -> tuple[list[Thread], str]:
    """Returns the Python threads of a process, or none and the reason."""
    threads, reason = read_by_py_spy(pid)
    if not threads:
        threads = asked(pid)
    return threads, "" if threads else reason


def asked(pid: int) -> list[Thread]:
    """Returns the process's answer, or nothing if it does not answer, because it is stopped or was not told to."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(address(pid))
            if peer_of(connection)[0] != pid:
                return []
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            return [_thread(one["name"], one["frames"]) for one in json.loads(text)]
        except (OSError, ValueError):
            return []


def _thread(name: str, frames: Iterable[dict[str, object]]) -> Thread:
    return Thread(
        name, [Frame(str(one["function"]), str(one["file"]), int(str(one["line"]))) for one in frames]
    )


def py_spy() -> str | None:
    """Returns the command, beside this Python or on the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(own) if own.exists() else shutil.which("py-spy")


def read_by_py_spy(pid: int) -> tuple[list[Thread], str]:
    command = py_spy()
    if command is None:
        return [], 'py-spy is not installed (pip install py-spy), and RINGREDUCE_REPORT does not say "answer"'
    threads: list[dict[str, Any]] = []
    reason = "py-spy could not read it"
    for _ in range(TRIES):
        try:
            # It does not stop the process, whose peers may be waiting for it.
            done = subprocess.run(
                [command, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                capture_output=True, text=True, timeout=LONGEST,
            )  # fmt: skip
            threads = json.loads(done.stdout) if done.returncode == 0 else []
        except (subprocess.TimeoutExpired, ValueError):
            continue
        if any(one["frames"] for one in threads):
            break
        reason = (done.stderr.strip().splitlines() or [reason])[-1]
    found = [
        Thread(
            one["thread_name"] or str(one["thread_id"]),
            [Frame(frame["name"], frame["filename"], frame["line"]) for frame in one["frames"]],
        )
        for one in threads
        if one["frames"]
    ]
    found.sort(key=lambda thread: thread.name != "MainThread")
    return found, reason


_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN = str(Path(importlib.util.find_spec("ringreduce").origin or "").parent) + os.sep  # type: ignore[union-attr]


def where(threads: list[Thread]) -> str:
    """Returns where the main thread is: the innermost function, and the user's function that led to it."""
    if not threads:
        return ""
    frames = threads[0].frames
    own = next((frame for frame in frames if not _is_of_a_library(frame)), None)
    if own is None or own is frames[0]:
        return str(frames[0])
    return f"{frames[0]}, called from {own}"


def _is_of_a_library(frame: Frame) -> bool:
    return frame.file.startswith(("<frozen", *_LIBRARIES, _OWN)) or "/site-packages/" in frame.file
