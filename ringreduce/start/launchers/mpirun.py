"""What the launchers of MPI programs have in common."""

from __future__ import annotations

import contextlib
import itertools
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ringreduce.start.launchers.launcher import BY_HAND, Env, Launched, Launcher
from ringreduce.start.orphans import ancestors

__all__ = ["Mpirun", "ancestors_named"]

_COMMANDS = ("hydra", "mpirun", "mpiexec", "prte", "orte", "jsm")  # their commands and daemons begin so

# Numbers the meetings, so that no key is used twice. All ranks of a job meet equally often.
_meetings = itertools.count(1)


class Mpirun(Launcher):
    """A launcher whose ranks of several hosts meet through its key-value space.

    Attributes:
        kind: the module of that space, and its name in addresses (:mod:`ringreduce.start.rendezvous.named_places`).
    """

    kind: str
    is_mpirun = True

    def is_live(self, env: Env) -> bool:
        """Returns whether the launcher is certainly still running. If not, its processes are looked for."""
        raise NotImplementedError

    def space(self) -> ModuleType:
        """Returns the module of the key-value space, which only some jobs need."""
        return import_module(f"ringreduce.start.launchers.{self.kind}")

    def place(self, known: Launched, env: Env, timeout: float) -> Any:
        # Nobody would come to the meeting if the variables are left from an mpirun that has ended.
        if not self.is_live(env) and not ancestors_named(*_COMMANDS):
            raise ValueError(
                f"{self.rank} and {self.sizes[0]} say that this is rank {known.rank} of {known.size}, but no mpirun "
                "that is running has started this process, so the other ranks would not come: unset the variables if "
                "they are left from another job; or set RANK, WORLD_SIZE and RINGREDUCE_RENDEZVOUS if you start the "
                "ranks yourself"
            )
        return super().place(known, env, timeout)

    def place_across_hosts(self, known: Launched, env: Env, timeout: float) -> Any:
        """Returns the key-value space, or mpi4py's communicator if this process cannot reach it."""
        if self.space().is_there():
            return f"{self.kind}://{next(_meetings)}"
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise ValueError(
                f"the {known.size} ranks of this job are on several hosts, and this process cannot reach mpirun's "
                f"{self.kind.upper()}. Install mpi4py for the MPI that started it; or {BY_HAND} ({error})"
            ) from error
        return MPI.COMM_WORLD

    def hidden(self, env: Env) -> str:
        return "mpirun"


def ancestors_named(*beginnings: str) -> list[int]:
    """Returns the processes that have started this one and whose commands begin like this."""
    found = []
    for pid in ancestors():
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text().startswith(beginnings):
                found.append(pid)
    return found
