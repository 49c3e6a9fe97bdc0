"""Launchers: which of them has started this process, and where it says that the ranks meet.

A launcher is a file here, and an entry of LAUNCHERS.
"""

from __future__ import annotations

from typing import Any

from ringreduce.hosts import addresses
from ringreduce.start.launchers.again import is_newcomer, tell_launcher
from ringreduce.start.launchers.hydra import Hydra
from ringreduce.start.launchers.launcher import Env, Launched, Launcher
from ringreduce.start.launchers.openmpi import OpenMpi
from ringreduce.start.launchers.slurm import Slurm
from ringreduce.start.launchers.torchrun import Torchrun

__all__ = [
    "LAUNCHERS",
    "Launched",
    "door_of",
    "is_newcomer",
    "launched",
    "launcher_of",
    "place_to_meet",
    "tell_launcher",
    "was_started_alone",
]

# The first that has started a process counts: mpirun may start its processes through srun.
LAUNCHERS: tuple[Launcher, ...] = (Torchrun(), OpenMpi(), Hydra(), Slurm())


def launched(env: Env) -> Launched | None:
    """Returns this process's place in the job of a launcher, or None if none has started it.

    Raises:
        ValueError: the launcher's variables are no numbers, or disagree.
    """
    return next((found for one in LAUNCHERS if (found := one.launched(env)) is not None), None)


def launcher_of(known: Launched) -> Launcher:
    return next(one for one in LAUNCHERS if one.name == known.launcher)


def place_to_meet(known: Launched, env: Env, timeout: float) -> Any:
    """Returns a store for :func:`ringreduce.init` through which the ranks of a job find each other.

    Raises:
        ValueError: the ranks are on several hosts and have no way to meet.
    """
    return _by_hand(env) or launcher_of(known).place(known, env, timeout)


def door_of(known: Launched, env: Env, timeout: float) -> Any:
    """Returns a store through which newcomers find the group of a job.

    Raises:
        ValueError: newcomers have no way to find it.
    """
    return _by_hand(env) or launcher_of(known).door(known, env, timeout)


def _by_hand(env: Env) -> str:
    place = env.get("RINGREDUCE_RENDEZVOUS", "")
    if place and not addresses(place):
        raise ValueError(
            "RINGREDUCE_RENDEZVOUS must be host:port, or host,host:port for a rank 0 on any of them, with a port from "
            f"1 to 65535, not {place!r}"
        )
    return place and f"tcp://{place}"


def was_started_alone(env: Env, timeout: float) -> bool:
    """Returns whether the launcher has started this process again, while ranks on other hosts keep running."""
    known = launched(env)
    return known is not None and launcher_of(known).started_alone(known, env, timeout)
