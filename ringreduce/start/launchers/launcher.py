"""What ringreduce needs to know of a launcher. Each launcher is a subclass, in a file of its own."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BY_HAND", "Env", "Launched", "Launcher", "first_of", "number"]

Env = Mapping[str, str]

BY_HAND = (
    "set RINGREDUCE_RENDEZVOUS to the host:port of a free port on rank 0's host, or to host,host:port if it may be on "
    "any of these, and RINGREDUCE_SECRET to a text that only the ranks know"
)


class Launched(NamedTuple):
    """A process's place in a job, from its launcher."""

    launcher: str
    rank: int
    size: int
    job: str  # the same on all ranks of a job, and different from other jobs


class Launcher(ABC):
    """The variables that a launcher sets for a rank, and where its ranks meet.

    Of several variables for one thing, the first that is set counts.

    Attributes:
        name: the launcher's name in the log and in results.
        rank: the variable for the rank.
        sizes: those for the number of ranks.
        here: those for the number of ranks on this host.
        hosts: those for the number of hosts.
        is_mpirun: whether it starts MPI programs, and the ranks may use MPI.
        restarts_all: whether all ranks being started again shows that none of them is left. Under Slurm, they may be a
            step of newcomers.
    """

    name: str
    rank: str
    sizes: tuple[str, ...]
    here: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    is_mpirun = False
    restarts_all = False

    def launched(self, env: Env) -> Launched | None:
        """Returns this process's place in the job, or None if another launcher, or none, has started it.

        Raises:
            ValueError: the variables are no numbers, or disagree.
        """
        size_name = first_of(self.sizes, env)
        if not env.get(self.rank) or not size_name or not self.has_started(env):
            return None
        rank, size = number(env, self.rank), number(env, size_name)
        if size > 2**31 - 1:
            raise ValueError(f"{size_name} must be an integer from 1 to 2147483647, not {size}")
        if not 0 <= rank < size:
            raise ValueError(
                f"{self.rank}={rank} and {size_name}={size} disagree: a rank is at least 0 and less than the number of "
                "ranks. They may be left from different jobs"
            )
        return Launched(self.name, rank, size, self.job(env))

    def has_started(self, env: Env) -> bool:
        """Returns whether variables that are set are this launcher's own, and those of a rank."""
        return True

    @abstractmethod
    def job(self, env: Env) -> str:
        """Returns a text that is the same on all ranks of the job, and on no others."""

    def across_hosts(self, known: Launched, env: Env) -> bool:
        """Returns whether the job's ranks are, or may be, on several hosts."""
        here, hosts = first_of(self.here, env), first_of(self.hosts, env)
        for name in filter(None, (here, hosts)):
            if number(env, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {number(env, name)}")
        return bool((here and number(env, here) < known.size) or (hosts and number(env, hosts) > 1))

    def place(self, known: Launched, env: Env, timeout: float) -> Any:
        """Returns a store through which the ranks meet.

        Raises:
            ValueError: the ranks are on several hosts and have no way to meet.
        """
        if not self.across_hosts(known, env):
            # The launchers' own stores need imports of torch or MPI, which ranks on one host can do without.
            return f"{self.name}/{known.job}"
        return self.place_across_hosts(known, env, timeout)

    @abstractmethod
    def place_across_hosts(self, known: Launched, env: Env, timeout: float) -> Any:
        """Returns a store through which the ranks of several hosts meet. Raises as :meth:`place` does."""

    def hidden(self, env: Env) -> str:
        """Returns where ranks of several hosts meet, if newcomers cannot find them there, or ""."""
        return ""

    def door(self, known: Launched, env: Env, timeout: float) -> Any:
        """Returns a store through which newcomers find the group of a job.

        Raises:
            ValueError: newcomers have no way to find it.
        """
        if self.hidden(env) and self.across_hosts(known, env):
            raise ValueError(
                f"the ranks of this job met through {self.hidden(env)}, where newcomers cannot find them: {BY_HAND}"
            )
        return self.place(known, env, timeout)

    def started_alone(self, known: Launched, env: Env, timeout: float) -> bool:
        """Returns whether this process was started again while ranks on other hosts keep running."""
        return False


def first_of(names: tuple[str, ...], env: Env) -> str:
    """Returns the first variable that is set, or ""."""
    return next((name for name in names if env.get(name)), "")


def number(env: Env, name: str) -> int:
    given = env.get(name, "")
    if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", given, re.ASCII):
        raise ValueError(f"{name} must be an integer, not {given!r}")
    return int(given)
