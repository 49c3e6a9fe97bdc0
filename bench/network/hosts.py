"""Several hosts on one Linux machine: network namespaces that a bridge joins.

    with Hosts(4, rate="1gbit") as hosts:
        server = hosts[0].popen(["python3", "-m", "http.server", "--bind", hosts[0].address])
        hosts[1].run(["curl", f"http://{hosts[0].address}:8000"])

Each host has one interface and a host name, and knows the names of the others. All hosts share the machine's files and
shared memory. The bridge has its own namespace, so the machine's own network is not touched. Everything is removed on
exit. If a process was killed, the next one removes what it left behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from bench.network import links
from bench.network.links import INTERFACE, Link, script

# A namespace's name contains the id of the process that made it and its start time, because ids are reused.
NAME = re.compile(r"rr-(\d+)-(\d+)-\d+-\w+")
INSTALL = "the commands ip and tc are missing: apt-get install iproute2"
MOST = 250  # hosts; their addresses differ only in the last number
_serial = count()


class Host:
    """One of the hosts: a namespace with the interface ``eth0``."""

    interface = INTERFACE

    def __init__(self, link: Link, index: int) -> None:
        self.index, self.name, self._link = index, f"host{index}", link
        self.address, self.address6 = links.address(index), links.address6(index)
        self.processes: list[subprocess.Popen[Any]] = []

    @property
    def namespace(self) -> str:
        """The name that ip netns lists."""
        return self._link.namespace

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Returns the command line that runs ``arguments`` on this host. The process id does not change."""
        setup = 'mount --bind "$0" /etc/hosts; echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'
        inside = ["unshare", "--uts", "sh", "-ec", setup, str(links.hosts_file(MOST)), self.name]
        return ["ip", "netns", "exec", self._link.namespace, *inside, *arguments]

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts ``arguments`` on this host. The process is killed when the hosts are removed."""
        process = subprocess.Popen(self.command(arguments), **options)
        self.processes.append(process)
        return process

    def run(self, arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Calls ``subprocess.run`` on this host."""
        return subprocess.run(self.command(arguments), **options)

    def cut(self) -> None:
        """Drops every packet from and to this host. Neither side is notified."""
        self._link.forward(False)

    def unplug(self) -> None:
        """Simulates a pulled cable: this host sees that its interface has no carrier."""
        self._link.carry(False)

    def heal(self) -> None:
        """Undoes cut() and unplug()."""
        self._link.carry(True)
        self._link.forward(True)


class Hosts(Sequence[Host]):
    """``number`` hosts, which exist while the ``with`` statement is active.

    Args:
        number: The number of hosts.
        rate: The rate of each host's link in each direction, in tc's notation ("1gbit"), or None for no limit. Or a
            sequence with one for each host.
        delay_ms: The time that a packet travels from one host to another. A round trip takes twice as long.
        sites: The number of each host's site, from 0. None puts all hosts at one site. Packets between sites take the
            trunks between them.
        trunk: The rate of a trunk in each direction.
        one_lost_in: One frame in this many is lost on its way. 0 loses none. Needs a delay.
    """

    def __init__(
        self,
        number: int,
        rate: str | Sequence[str | None] | None = "1gbit",
        delay_ms: float = 0,
        sites: Sequence[int] | None = None,
        trunk: str | None = None,
        one_lost_in: int = 0,
    ) -> None:
        if not 0 < number <= MOST:
            raise ValueError(f"number must be from 1 to {MOST}, not {number}")
        sites = [0] * number if sites is None else sites
        if len(sites) != number or min(sites) < 0:
            raise ValueError(f"sites must number the site of each of {number} hosts from 0, not {sites}")
        self.rates = [rate] * number if rate is None or isinstance(rate, str) else list(rate)
        if len(self.rates) != number:
            raise ValueError(f"rate has {len(self.rates)} values for {number} hosts")
        if one_lost_in < 0 or (one_lost_in and not delay_ms):
            raise ValueError(f"one_lost_in must be at least 0 and needs delay_ms, not {one_lost_in}")
        self.delay_ms, self._one_lost_in, self._owner = delay_ms, one_lost_in, os.getpid()
        self._sites, self._trunk = 1 + max(sites), trunk
        prefix = f"rr-{self._owner}-{_start_of(self._owner)}-{next(_serial)}"
        self._switch = f"{prefix}-switch"
        self._hosts = [
            Host(Link(f"{prefix}-{i}", self._switch, i, delay_ms, site), i) for i, site in enumerate(sites)
        ]
        self._relay: subprocess.Popen[str] | None = None
        self._old_handlers: dict[signal.Signals, Any] = {}

    @staticmethod
    @cache
    def permitted(**options: Any) -> str | None:
        """Returns why such hosts cannot be made here, or None if they can."""
        if not shutil.which("ip") or not shutil.which("tc"):
            return INSTALL
        if os.geteuid() != 0:
            return "network namespaces need root"
        try:
            with Hosts(1, **options):
                return None
        except OSError as error:
            return f"network namespaces cannot be made here: {error}"

    def __getitem__(self, index: Any) -> Any:
        return self._hosts[index]

    def __len__(self) -> int:
        return len(self._hosts)

    def __enter__(self) -> Hosts:
        if not shutil.which("ip") or not shutil.which("tc"):
            raise OSError(INSTALL)
        remove_leftovers()
        self._catch_signals()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills all processes on the hosts, and removes the hosts."""
        if os.getpid() != self._owner:  # a forked child that leaves the with statement
            return
        _remove([self._switch, *(host._link.namespace for host in self)])
        for process in [process for host in self for process in host.processes]:
            process.wait()
        if self._relay is not None:
            self._relay.communicate()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers.clear()

    def kill(self) -> None:
        """Kills all processes on the hosts."""
        for host in self:
            _kill_inside(host._link.namespace)

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        script(self._switch, links.switch_script(self._sites, self._trunk))
        if self.delay_ms:
            self._relay = links.start_relay(self._switch, len(self), self.delay_ms, self._one_lost_in)
        for host, rate in zip(self, self.rates, strict=True):
            _ip("netns", "add", host._link.namespace)
            host._link.build(rate)

    def _catch_signals(self) -> None:
        """Makes signals that would end the process at once raise an exception, so that the hosts are closed."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._old_handlers[number] = signal.signal(number, _leave)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _start_of(pid: int) -> str | None:
    """Returns when a process started, in ticks of the machine's clock, or None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def remove_leftovers() -> None:
    """Removes the hosts of processes that ended without removing them."""
    _remove(
        [
            name
            for name, pid, start in _namespaces()
            if _start_of(int(pid)) != start  # the process has ended, and its id may have been reused
        ]
    )


def _namespaces() -> Iterator[tuple[str, str, str]]:
    for name in _ip("netns", "list").split():
        found = NAME.fullmatch(name)
        if found:
            yield name, found[1], found[2]


def _remove(names: Sequence[str]) -> None:
    there = {name for name, _, _ in _namespaces()}
    for name in [name for name in names if name in there]:
        _kill_inside(name)
        _ip("netns", "delete", name, check=False)  # another process may remove the same leftover


def _kill_inside(namespace: str) -> None:
    for pid in _ip("netns", "pids", namespace, check=False).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _ip(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
