"""The cores of a host: which ones this process may use, how they lie, and which of them each rank gets.

A core here is what Linux counts as a CPU. Threads of one physical core are neighbours, and so are the cores of one NUMA
node, although Linux may number them far apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from ringreduce import _engine

__all__ = ["Core", "HostCores", "bind", "described", "of_folder", "usable"]

SYSTEM = "RINGREDUCE_TEST_SYSTEM"
SLOW = 0.8
"""Cores below this share of the fastest one's speed are slow. Those of one kind differ by a few per cent."""


@dataclass(frozen=True)
class Core:
    """A core.

    Attributes:
        number: Linux's number of it.
        node: Its NUMA node.
        physical: The lowest number of those that are threads of the same physical core.
        speed: Compared with that of other cores of this host.
    """

    number: int
    node: int = 0
    physical: int = -1
    speed: float = 1.0


class HostCores:
    """The cores of a host that a process may use.

    Attributes:
        cores: All of them, neighbours side by side.
        quota: The container's limit in cores; 0 if there is none.
    """

    def __init__(self, cores: list[Core], quota: int = 0) -> None:
        self.cores = sorted(cores, key=lambda one: (one.node, one.physical, one.number))
        self.quota = quota
        fastest = max((one.speed for one in cores), default=1.0)
        self._fast = [one for one in self.cores if one.speed >= SLOW * fastest]

    @property
    def count(self) -> int:
        """How many cores can be busy at the same time: no more than the container's limit."""
        return max(1, min(len(self.cores), self.quota or len(self.cores)))

    def shares(self, ranks: int) -> list[list[int]]:
        """Returns the cores of each rank, all of one node if there are as many ranks as nodes.

        All ranks get the same number of cores: the slowest rank sets the pace. For the same reason none gets slow cores
        if there are enough fast ones. Neighbouring ranks get neighbouring cores. Without a core for each rank, the
        result is empty.
        """
        for cores in (self._fast, self.cores):
            whole = list(_grouped(cores, "physical").values())
            if len(whole) >= ranks:
                return _cut(whole, ranks)
        return _cut([[one] for one in self.cores], ranks) if len(self.cores) >= ranks else []

    def in_turn(self, rank: int) -> int:
        """Returns one core for a rank, as MPIs bind theirs: the next physical core, and fast ones first."""
        order = sorted(self.cores, key=lambda one: (one not in self._fast, one.number != one.physical))
        return order[rank % len(order)].number

    def threads(self, ranks: int) -> int:
        """Returns how many threads each rank can keep busy."""
        share = len((self.shares(ranks) or [[]])[0])
        return max(1, min(share, self.count // ranks))

    def explain(self, ranks: int) -> list[str]:
        """Returns lines that say where ``ringreduce run`` places the ranks."""
        node = {one.number: one.node for one in self.cores}
        slow = (
            f", {len(self.cores) - len(self._fast)} of them slow" if len(self._fast) < len(self.cores) else ""
        )
        limit = f", of which the container may use {self.quota}" if 0 < self.quota < len(self.cores) else ""
        nodes = len({*node.values()})
        lines = [f"{len(self.cores)} cores{slow}, on {nodes} NUMA node{'s' * (nodes > 1)}{limit}"]
        shares = self.shares(ranks)
        if not shares:
            return [*lines, f"  {ranks} ranks share them, unbound"]
        homes = [", ".join(map(str, sorted({node[number] for number in share}))) for share in shares]
        width = len(str(ranks - 1))
        for rank, (share, home) in enumerate(zip(shares, homes, strict=True)):
            lines.append(f"  rank {rank:{width}}: node {home}, cores {_spans(share)}")
        crossing = sum(one != other for one, other in zip(homes, [*homes[1:], homes[0]], strict=True))
        plural = "s" * (self.threads(ranks) > 1)
        return [
            *lines,
            f"  {self.threads(ranks)} thread{plural} for each; {crossing} of {ranks} links of a ring are between nodes",
        ]


def _spans(numbers: list[int]) -> str:
    """Returns a list such as "0-3, 8"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _grouped(cores: list[Core], attribute: str) -> dict[int, list[Core]]:
    groups: dict[int, list[Core]] = {}
    for one in cores:
        groups.setdefault(getattr(one, attribute), []).append(one)
    return groups


def _cut(units: list[list[Core]], ranks: int) -> list[list[int]]:
    """Divides units that must stay whole among ranks, without a unit that some rank would have to fetch elsewhere."""
    nodes: dict[int, list[list[Core]]] = {}
    for unit in units:
        nodes.setdefault(unit[0].node, []).append(unit)
    parts = list(nodes.values()) if ranks >= len(nodes) else [units]
    share = len(units) // ranks
    while sum(len(part) // share for part in parts) < ranks:
        share -= 1
    counts = [0] * len(parts)
    for _ in range(ranks):  # the next rank goes where each has most room
        free = [at for at, part in enumerate(parts) if (counts[at] + 1) * share <= len(part)]
        counts[max(free, key=lambda at: len(parts[at]) / (counts[at] + 1))] += 1
    return [
        sorted(core.number for unit in part[first * share : (first + 1) * share] for core in unit)
        for part, count in zip(parts, counts, strict=True)
        for first in range(count)
    ]


# --- the host's description ---------------------------------------------------------------------------------------


def usable() -> HostCores:
    """Returns the cores that this process may use."""
    described_by = os.environ.get(SYSTEM)
    if described_by:
        return of_folder(Path(described_by), None, _engine.core_quota())
    return of_folder(Path("/"), os.sched_getaffinity(0), _engine.core_quota())


def bind(rank: int) -> None:
    """Binds this process to a single core, in turn with other ranks."""
    os.sched_setaffinity(0, {usable().in_turn(rank)})


def of_folder(root: Path, allowed: set[int] | None = None, quota: int = 0) -> HostCores:
    """Reads sys/devices/system below a folder. Without ``allowed``, all cores that are online count."""
    system = root / "sys/devices/system"
    nodes = {
        number: int(folder.name.removeprefix("node"))
        for folder in system.glob("node/node[0-9]*")
        for number in _numbers(folder / "cpulist")
    }
    slow = _numbers(root / "sys/devices/cpu_atom/cpus")  # Intel's
    found = []
    for number in sorted(_numbers(system / "cpu/online") if allowed is None else allowed):
        folder = system / f"cpu/cpu{number}"
        siblings = _numbers(folder / "topology/thread_siblings_list") or [number]
        speeds = [_numbers(folder / name) for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq")]
        speed = next((each[0] for each in speeds if each), 1)
        found.append(
            Core(number, nodes.get(number, 0), min(siblings), speed / 2 if number in slow else speed)
        )
    if not found:
        raise ValueError(f"{root}: there is no list of cores in sys/devices/system/cpu/online")
    return HostCores(found, quota)


def _numbers(path: Path) -> list[int]:
    """Reads a list such as "0-3,8", or a single number. Returns an empty list if there is no such file."""
    try:
        text = path.read_text()
    except OSError:
        return []
    ends = [item.partition("-") for item in text.split(",") if item.strip()]
    return [number for first, _, last in ends for number in range(int(first), int(last or first) + 1)]


@dataclass(frozen=True)
class Description:
    """A host in a few numbers: the keys of a file. The first threads of all cores come before the second ones."""

    nodes: int = 1
    cores_per_node: int = 1
    threads_per_core: int = 1
    slow_cores_per_node: int = 0
    slow_speed: float = 0.5
    quota: int = 0


def described(table: Mapping[str, object]) -> HostCores:
    """Returns the cores of a host that a file describes.

    Raises:
        ValueError: A key is unknown, or a value is no number of that kind.
    """
    known: dict[str, int | float] = {one.name: getattr(Description, one.name) for one in fields(Description)}
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"{key}: there is no such key; the keys are {', '.join(known)}")
        kind, least = type(known[key]), 0 if key in ("slow_cores_per_node", "slow_speed", "quota") else 1
        if isinstance(value, bool) or not isinstance(value, kind) or value < least:
            raise ValueError(f"{key} must be a number of type {kind.__name__} from {least} on, not {value!r}")
    host = Description(**table)  # type: ignore[arg-type]
    each = host.cores_per_node + host.slow_cores_per_node
    first = [Core(n, n // each, n, 1.0 if n % each < host.cores_per_node else host.slow_speed)
             for n in range(host.nodes * each)]  # fmt: skip
    more = [one for one in first if one.speed == 1.0] * (host.threads_per_core - 1)
    later = [Core(len(first) + at, one.node, one.physical, one.speed) for at, one in enumerate(more)]
    return HostCores(first + later, host.quota)
