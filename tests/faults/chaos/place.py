"""Where trials run: files and processes of their own, and hosts of which one can be cut off."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ringreduce
import ringreduce.start.rendezvous.gathering  # as ranks would
from tests.faults.chaos.plan import Trial

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))
from bench.network.hosts import Host, Hosts

PORT = 23456
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000  # unshare(2)
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # mount(2)
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
MOST_HOSTS = 8

_libc = ctypes.CDLL(None, use_errno=True)


class Place:
    """Of one process that runs trials, one after the other."""

    def __init__(self) -> None:
        # Whoever a rank leaves behind becomes a child of this process.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._folder = tempfile.mkdtemp(prefix="chaos-")
        os.environ["TMPDIR"] = tempfile.tempdir = self._folder
        self._watched = [Path(self._folder)]
        if _own_shared_memory_folder():
            self._watched.append(Path("/dev/shm"))
        with ringreduce.init(0, 1):  # what a first communicator imports
            pass
        ringreduce.finalize()
        gc.freeze()  # ranks are forked from here: their collections leave alone, and do not copy, what is there by now
        self._hosts: Hosts | None = None
        self._cut: Host | None = None

    def close(self) -> None:
        if self._hosts is not None:
            self._hosts.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, trial: Trial) -> None:
        if trial.on_hosts and self._hosts is None:
            self._hosts = Hosts(MOST_HOSTS, rate=None)
            self._hosts.__enter__()

    def restore(self) -> None:
        if self._cut is not None:
            self._cut.heal()
            self._cut = None

    def store(self, trial: Trial) -> str | None:
        """Where ranks meet if they are on hosts of their own."""
        if not trial.on_hosts or self._hosts is None:
            return None
        os.environ["RINGREDUCE_SECRET"] = "of a trial"
        numbers = dict.fromkeys(trial.hosts) if trial.newcomers else [trial.hosts[0]]
        return f"tcp://{','.join(self._hosts[number].address for number in numbers)}:{PORT}"

    def enter(self, trial: Trial, rank: int) -> None:
        """Moves this process to the rank's host."""
        if not trial.on_hosts or self._hosts is None:
            return
        with open(f"/run/netns/{self._hosts[trial.hosts[rank]].namespace}") as namespace:
            _check(_libc.setns(namespace.fileno(), CLONE_NEWNET))

    def cut(self, host: int, how: str) -> None:
        assert self._hosts is not None
        self._cut = self._hosts[host]
        if how == "unplug":
            self._cut.unplug()
        else:
            self._cut.cut()

    def leftovers(self) -> list[str]:
        """What trials have left, in words; removes it."""
        found = []
        for folder in self._watched:
            for path in folder.iterdir():
                found.append(str(path.name))
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for process in _children():
            found.append(f"process {process}")
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        return found


def _children() -> list[int]:
    """Of this process; all that trials have started have been waited for."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(process) for process in found]


def _own_shared_memory_folder() -> bool:
    """Gives this process a /dev/shm of its own, where it may do so: other programs' files come and go."""
    if os.geteuid() != 0 or _libc.unshare(CLONE_NEWNS) != 0:
        return False
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    return _libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None) == 0


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_no_hosts() -> Any:
    """Why no link can be cut here; None if one can."""
    return Hosts.permitted(rate=None)
