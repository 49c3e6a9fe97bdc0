"""Finds the ranks of this host's jobs from outside, and what each of them is doing.

Every process shows its groups in anonymous memory, which other processes of the same user find through /proc. Reading
it needs no help from the process, so it may hang, run or be stopped.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ringreduce import _engine
from ringreduce.diagnosis import stacks

__all__ = ["GroupState", "Rank", "Wait", "add_stacks", "found_here"]

FRESH = 1.0  # seconds: a rank that waits says so every few milliseconds


@dataclass(frozen=True)
class Wait:
    """A wait that has not ended. ``peer`` is the rank in the group waited for, or -1; ``what`` describes a message."""

    peer: int
    seconds: float
    what: str = ""


@dataclass(frozen=True)
class GroupState:
    """A group as one of its ranks sees it.

    Attributes:
        key: what identifies the group on all its ranks.
        rank, size: this rank in the group, and the number of ranks.
        order: a number that is larger for groups that the process joined later.
        members, hosts: the ranks' numbers in the job, and the numbers of their hosts, by rank; empty if unknown.
        transport, state, problem: how bytes travel, "open", "failed" or "closed", and how it failed.
        begun, ended: the number of the last collective that began, and of the last that ended.
        queued: the collectives that were handed to the progress thread and have not ended.
        calls: the latest calls in words, by number.
        wait, message: what the current collective, or a message, waits for.
    """

    key: str
    rank: int
    size: int
    order: int
    members: list[int]
    hosts: list[int]
    transport: str
    state: str
    problem: str
    begun: int
    ended: int
    queued: int
    calls: dict[int, str]
    wait: Wait | None
    message: Wait | None

    def name(self, rank: int) -> int:
        """Returns a rank's number in the job."""
        return self.members[rank] if rank < len(self.members) else rank

    @property
    def in_call(self) -> bool:
        return self.begun > self.ended


@dataclass
class Rank:
    """A process of a job.

    Attributes:
        pid, host, command: the process, its host's name, and its command line.
        state: the state of the process according to the system, such as "S", or "T" if it is stopped.
        groups: its groups, in the order in which it joined them.
        threads: its Python threads, the main thread first; empty if unknown.
        no_stack: why they are unknown.
    """

    pid: int
    host: str
    command: str
    state: str
    groups: list[GroupState]
    threads: list[stacks.Thread] = field(default_factory=list)
    no_stack: str = ""

    @property
    def number(self) -> int:
        """Its number in the job, if known."""
        largest = max(self.groups, key=lambda group: (group.size, -group.order))
        return largest.name(largest.rank)

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(one: dict[str, Any]) -> Rank:
        groups = [_group_from(group) for group in one["groups"]]
        threads = [
            stacks.Thread(thread["name"], [stacks.Frame(**frame) for frame in thread["frames"]])
            for thread in one["threads"]
        ]
        return Rank(**{**one, "groups": groups, "threads": threads})


def _group_from(one: dict[str, Any]) -> GroupState:
    waits = {name: Wait(**one[name]) if one[name] else None for name in ("wait", "message")}
    return GroupState(
        **{**one, **waits, "calls": {int(number): text for number, text in one["calls"].items()}}
    )


def found_here() -> list[Rank]:
    """Returns all processes of this host that are in a group and that this user may look at, without stacks."""
    found = []
    for entry in sorted(Path("/proc").iterdir(), key=lambda entry: entry.name):
        if entry.name.isdecimal():
            rank = look_at(int(entry.name))
            if rank is not None and rank.groups:
                found.append(rank)
    return found


def add_stacks(ranks: Iterable[Rank]) -> None:
    """Finds what the Python threads of processes of this host do. This takes some tenths of a second for each."""
    for rank in ranks:
        rank.threads, rank.no_stack = stacks.of(rank.pid)


def look_at(pid: int) -> Rank | None:
    """Returns what a process shows, or None if it shows nothing."""
    folder = Path(f"/proc/{pid}")
    try:
        for file in _memory_of(folder):
            number, groups = _engine.published_states(str(file))
            # The child of a fork has its parent's memory, too. A process may have other numbers inside containers.
            if number != _number_inside(folder):
                continue
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            now = time.monotonic()
            return Rank(pid, socket.gethostname(), command, state, _groups(groups, now))
    except OSError:  # it has ended, or belongs to another user
        pass
    return None


def _memory_of(folder: Path) -> list[Path]:
    """Returns the open files of a process that may be the memory in which it shows its groups."""
    found = []
    for name in os.listdir(folder / "fd"):
        with suppress(OSError):  # closed by now
            if os.readlink(folder / "fd" / name).startswith(f"/memfd:{_engine.published_name()} "):
                found.append(folder / "fd" / name)
    return found


def _number_inside(folder: Path) -> int:
    for line in (folder / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return int(folder.name)


def _groups(shown: list[dict[str, Any]], now: float) -> list[GroupState]:
    groups = [
        GroupState(
            key=f"{one['group']:016x}",
            wait=_wait(one["wait"], now) if one["begun"] > one["ended"] else None,
            message=_wait(one["message"], now),
            calls=dict(one["calls"]),
            **{name: one[name] for name in (
                "rank", "order", "members", "hosts", "transport", "state", "problem", "begun", "ended", "queued"
            )},
            size=one["world"],
        )
        for one in shown
    ]  # fmt: skip
    return sorted(groups, key=lambda group: group.order)


def _wait(shown: dict[str, Any] | None, now: float) -> Wait | None:
    if shown is None or now - shown["seen"] > FRESH:
        return None
    return Wait(shown["peer"], max(now - shown["since"], 0.0), shown["what"])
