"""Facts about the system that figures depend on, such as its cores, frequency governor and network interfaces."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ringreduce import __version__, _engine, environment

UNKNOWN = "unknown"
FAR_NS = 110.0
"""The geometric mean of the two modes between which machines were seen to switch on their own."""
ESTABLISHED = "01"
SIOCGIFADDR = 0x8915


def mode_of(before: float | None, after: float | None) -> str:
    """Returns the mode: "near", "far" or "unknown", or both joined as in "near-far" if it changed in between.

    ``before`` and ``after`` are one-way times from core to core, in nanoseconds.
    """
    modes = [UNKNOWN if ns is None else "near" if ns < FAR_NS else "far" for ns in (before, after)]
    return modes[0] if modes[0] == modes[1] else "-".join(modes)


def machine_facts(ranks: int) -> dict[str, Any]:
    """Returns the facts about this process and its host."""
    cores = _engine.usable_cores()
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ringreduce": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": _version("torch"),
        "mpi4py": _version("mpi4py"),
        **host_facts(os.sched_getaffinity(0)),
        "cores": cores,
        "ranks": ranks,
        "oversubscribed": ranks > cores,
        "command": " ".join(["ringreduce", *sys.argv[1:]]),
        "environment": environment.set_here(os.environ),
    }


def host_facts(cores: Iterable[int]) -> dict[str, str]:
    """Returns the facts about this host and the given cores."""
    return {"host": platform.node(), "cpu": cpu(), "kernel": platform.release(), "governor": governor(cores)}


def of_all(ranks: list[dict[str, Any]], key: str) -> str:
    """Returns the distinct values that the ranks have for a fact, separated by commas."""
    return ", ".join(dict.fromkeys(str(one[key]) for one in ranks))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def busy_share(seconds: float = 0.1) -> float:
    """Returns the share of the cores' time that other programs currently take, while this one sleeps."""

    def ticks() -> tuple[int, int]:
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all, idle

    all_before, idle_before = ticks()
    time.sleep(seconds)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def governor(cores: Iterable[int], folder: Path = Path("/sys/devices/system/cpu")) -> str:
    """Returns the frequency governor of these cores, or "unknown" as in most virtual machines."""
    found = {}
    for core in cores:
        try:
            found[(folder / f"cpu{core}" / "cpufreq" / "scaling_governor").read_text().strip()] = True
        except OSError:
            found[UNKNOWN] = True
    return ", ".join(found)


def interfaces() -> list[str]:
    """Returns the network interfaces over which this process has TCP connections."""
    names = {address: name for name, address in _addresses()}
    return sorted({names.get(local, UNKNOWN) for local in _local_ends()})


def _addresses() -> list[tuple[str, str]]:
    """Returns the names of interfaces with their addresses, in the notation of /proc/net/tcp and tcp6."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            found.append((name, answer[20:24][::-1].hex().upper()))
    try:
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            address, *_, name = line.split()
            words = [bytes.fromhex(address)[i : i + 4][::-1].hex().upper() for i in range(0, 16, 4)]
            found.append((name, "".join(words)))
    except OSError:
        pass
    return found


def _local_ends() -> set[str]:
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(link))
        except OSError:  # closed in the meantime
            continue
    ends = set()
    for family in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{family}").read_text().splitlines()[1:]
        except OSError:
            continue
        for _, local, _, state, *rest in map(str.split, lines):
            if state == ESTABLISHED and f"socket:[{rest[5]}]" in own:
                ends.add(local.partition(":")[0].removeprefix("0000000000000000FFFF0000"))
    return ends
