"""The contestants between hosts, and how each is started there. Register new ones here."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.peers.contestants import BUILD, gloo_python, home_of, mpi_environment
from ringreduce.bench.programs import Contestant, Question


class Place(Protocol):
    """A host of hosts.py, or Loopback."""

    name: str
    address: str
    interface: str

    def command(self, arguments: Sequence[str]) -> list[str]: ...
    def popen(self, arguments: Sequence[str], **options: Any) -> Any: ...


# All hosts share the machine's cores. If each host bound its ranks itself, they would all be on the same core.
OPENMPI = ["--bind-to", "none", "--mca", "pml", "ob1"]
YIELDING = ["--mca", "mpi_yield_when_idle", "1"]
# han, a layer above tuned, would ignore the algorithms that are configured for tuned.
RING = [
    *("--mca", "coll", "^han", "--mca", "coll_tuned_use_dynamic_rules", "1"),
    *("--mca", "coll_tuned_allreduce_algorithm", "4", "--mca", "coll_tuned_allgather_algorithm", "4"),
]
# Without these settings, both of MPICH's network layers see one host, and use shared memory.
UCX = {"UCX_TLS": "self,tcp"}
OFI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}

# Our guards against bytes that change on the way.
GUARDS = {
    "": {},
    "nothing": {"RINGREDUCE_TCP_CHECK": "0"},
    "checksums": {"RINGREDUCE_TCP_CHECK": "1"},
    "tls": {"RINGREDUCE_TLS": "1", "RINGREDUCE_SECRET": "nobody is to be kept out of a benchmark"},
}

AGENT = """#!/bin/sh
# Stands in for ssh: [options] host command...
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=$1
shift
case $host in
"""


def write_agent(hosts: Sequence[Place], path: Path) -> Path:
    """Writes the program that an mpirun uses instead of ssh to start processes on the other hosts."""
    cases = [f'{host.name}) exec {shlex.join(host.command(["sh", "-c"]))} "$*";;\n' for host in hosts]
    path.write_text("".join([AGENT, *cases, 'esac\necho "no host $host" >&2\nexit 1\n']))
    path.chmod(0o755)
    return path


class Network:
    """The hosts, the number of ranks on each, a temporary folder, and the provider of all that use libfabric."""

    def __init__(
        self, hosts: Sequence[Place], ranks_per_host: int, folder: Path, provider: str = "tcp"
    ) -> None:
        self.hosts, self.ranks_per_host, self.provider = hosts, ranks_per_host, provider
        self.ranks = len(hosts) * ranks_per_host
        self._agent = write_agent(hosts, folder / "agent")

    def python_ranks(self, name: str, python: str, options: Sequence[str] = (), **more: Any) -> Contestant:
        def command(question: Question) -> list[str]:
            ranks = []
            for rank in range(self.ranks):
                host = self.hosts[rank // self.ranks_per_host]
                own = ["--rank", str(rank), "--interface", host.interface, *options]
                ranks.append(
                    host.command([python, "-m", "bench.network.rank", *question.options(name), *own])
                )
            return [sys.executable, "-m", "bench.network.start_ranks", json.dumps(ranks)]

        return Contestant(name, command, **more)

    def mpi(
        self, name: str, vendor: str, arguments: Sequence[str], environment: dict[str, str]
    ) -> Contestant:
        program, mpirun = BUILD / f"mpi_collectives-{vendor}", home_of(vendor).mpirun

        def command(question: Question) -> list[str]:
            whole = [str(mpirun), "-n", str(self.ranks), *arguments, str(program), *question.options(name)]
            return self.hosts[0].command(whole)

        return Contestant(
            name,
            command,
            lambda question: {**mpi_environment(vendor, question), **environment},
            (program, mpirun),
        )

    def openmpi(self, name: str, extra: Sequence[str] = ()) -> Contestant:
        hosts = ",".join(f"{host.name}:{self.ranks_per_host}" for host in self.hosts)
        transports = "self,tcp" if self.ranks_per_host == 1 else "self,sm,tcp"
        where = ["--host", hosts, "--prtemca", "plm_ssh_agent", str(self._agent)]
        how = ["--mca", "btl", transports, "--mca", "btl_tcp_if_include", self.hosts[0].interface]
        return self.mpi(name, "openmpi", [*where, *OPENMPI, *how, *extra], {})

    def mpich(self, name: str, environment: dict[str, str]) -> Contestant:
        hosts = ",".join(host.name for host in self.hosts)
        where = ["-launcher", "ssh", "-launcher-exec", str(self._agent), "-hosts", hosts]
        interface = self.hosts[0].interface
        devices = {"UCX_NET_DEVICES": interface, "FI_TCP_IFACE": interface, "FI_PROVIDER": self.provider}
        arguments = [*where, "-ppn", str(self.ranks_per_host)]
        return self.mpi(name, "mpich", arguments, {**environment, **devices})

    def gloo(self) -> Contestant:
        python, quiet = gloo_python(), {"PYTHONWARNINGS": "ignore"}
        return self.python_ranks("gloo", str(python), environment=lambda question: quiet, needs=(python,))

    def ours(self, transport: str, algorithm: str, guard: str = "", reads: str = "") -> Contestant:
        """Returns our contestant. Algorithm "off" is auto without measured links, and "" is the default."""
        fabric = "ofi" in transport
        what = ("" if transport == "tcp" else transport, algorithm, guard, reads and f"reads={reads}")
        name = "ringreduce" + "".join(f":{one}" for one in what if one not in ("auto", ""))
        interface = self.hosts[0].interface
        links = {**GUARDS[guard], "RINGREDUCE_IFACE": interface}
        if fabric:
            links |= {"RINGREDUCE_OFI_PROVIDER": self.provider, "RINGREDUCE_OFI_RMA": reads or "auto"}
        if fabric and self.provider != "shm":
            links["RINGREDUCE_OFI_DOMAIN"] = interface
        if algorithm == "off":
            links, algorithm = {**links, "RINGREDUCE_LINKS": "off"}, "auto"
        options = ["--transport", transport, "--algorithm", algorithm]
        return self.python_ranks(
            name, sys.executable, options, environment=lambda question: links, kind="ours"
        )


PEERS: dict[str, Callable[[Network], Contestant]] = {
    "gloo": Network.gloo,
    "openmpi": lambda network: network.openmpi("openmpi"),
    "openmpi-yield": lambda network: network.openmpi("openmpi-yield", YIELDING),
    "openmpi-ring": lambda network: network.openmpi("openmpi-ring", [*YIELDING, *RING]),
    "mpich": lambda network: network.mpich("mpich", UCX),
    "mpich-ofi": lambda network: network.mpich("mpich-ofi", OFI),
}
OURS = "ringreduce"
