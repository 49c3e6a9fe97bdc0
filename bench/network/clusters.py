"""Starts programs on the hosts of hosts.py with the mpirun of each MPI, or with ssh.

with Hosts(2) as hosts, Sshd(hosts, folder) as ssh:
    Mpirun("mpich", hosts, folder).run({"host0": 1, "host1": 2}, ["python3", "train.py"])
    hosts[0].run(["ringreduce", "run", "--ssh", ssh.command, "--hosts", "host0:1,host1:2", "train.py"])
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.network.hosts import Hosts

ROOT = Path(__file__).resolve().parents[2]
VENDORS = ("openmpi", "mpich", "impi")
OURS = ("RINGREDUCE_", "MASTER_", "SLURM_")
PATIENCE = 30.0  # seconds for daemons to start
# Called like ssh: runs the command that follows the host's name on that host.
AGENT = """#!/bin/sh
while [ -z "${{1%%-*}}" ]; do shift; done
host=$1; shift
case $host in
{cases}esac
"""
SSHD = """\
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
"""
SSH = """\
IdentityFile {folder}/key
IdentitiesOnly yes
BatchMode yes
StrictHostKeyChecking no
UserKnownHostsFile {folder}/known
LogLevel ERROR
"""


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment of the programs, in which only the given variables configure ringreduce."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


class Mpirun:
    """The launcher of the MPI in .venv-VENDOR, which runs on the first host. All hosts share the machine's files."""

    def __init__(self, vendor: str, hosts: Hosts, folder: Path) -> None:
        self._vendor, self._hosts, self._folder = vendor, hosts, folder
        self.home = ROOT / f".venv-{vendor}"
        self._agent = folder / "agent"
        run = {host.name: shlex.join(host.command(["sh", "-c"])) for host in hosts}
        cases = "".join(f'{name}) exec {command} "$*";;\n' for name, command in run.items())
        self._agent.write_text(AGENT.format(cases=cases))
        self._agent.chmod(0o755)

    def missing(self) -> str | None:
        """Returns why it cannot be used, or None if it can."""
        mpirun = self.home / "bin" / "mpirun"
        return None if mpirun.exists() else f"there is no {mpirun}; bench/peers.mk sets it up"

    def command(self, ranks: dict[str, int], command: list[str]) -> list[str]:
        """Returns the command line that starts the given number of ranks on each host."""
        mpirun = [str(self.home / "bin" / "mpirun"), "-n", str(sum(ranks.values()))]
        if self._vendor == "openmpi":
            placed = ",".join(f"{host}:{count}" for host, count in ranks.items())
            agent = ["--prtemca", "plm_ssh_agent", str(self._agent)]
            return [*mpirun, "--bind-to", "none", "--host", placed, *agent, *command]
        machines = self._folder / "machines"
        machines.write_text("".join(f"{host}:{count}\n" for host, count in ranks.items()))
        agent = ["-launcher", "ssh", "-launcher-exec", str(self._agent)]
        return [*mpirun, *agent, "-machinefile", str(machines), *command]

    def environment(self) -> dict[str, str]:
        if self._vendor == "openmpi":
            return environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if self._vendor == "mpich":
            return environment()
        path, libraries = f"{self.home}/bin:{os.environ['PATH']}", str(self.home / "lib")
        return environment(I_MPI_ROOT=str(self.home), PATH=path, LD_LIBRARY_PATH=libraries, FI_PROVIDER="tcp")

    def run(
        self, ranks: dict[str, int], command: list[str], timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        return self._hosts[0].run(
            self.command(ranks, command), env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, cwd=self._folder,
        )  # fmt: skip


class Sshd:
    """OpenSSH's server on each host, with its own keys and without the machine's configuration.

    Args:
        own_processes: whether what it starts sees only the processes that it has started on the same host.
    """

    def __init__(self, hosts: Hosts, folder: Path, own_processes: bool = False) -> None:
        self._hosts, self._folder = hosts, folder
        self._own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if own_processes else []
        self.command = f"ssh -F {folder}/ssh_config"

    @staticmethod
    def missing() -> str | None:
        """Returns why it cannot run here, or None if it can."""
        for program in ("sshd", "ssh", "ssh-keygen"):
            if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin"):
                return f"{program} is missing: apt-get install openssh-server"
        return Hosts.permitted()

    def __enter__(self) -> Sshd:
        for name, text in (("sshd_config", SSHD), ("ssh_config", SSH)):
            (self._folder / name).write_text(text.format(folder=self._folder))
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / "key")]
        subprocess.run(key, check=True, stdin=subprocess.DEVNULL)
        program = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
        # sshd needs an empty folder /run/sshd, which it gets in a mount of its own.
        start = f"mount -t tmpfs sshd /run && mkdir -m 755 /run/sshd && exec {program} -D -e -f $0"
        for host in self._hosts:
            log = (self._folder / f"sshd.{host.name}").open("w")
            command = [*self._own, "sh", "-c", start, str(self._folder / "sshd_config")]
            host.popen(command, stderr=log, env=environment())
            self._wait_for(host.name)
        return self

    def _wait_for(self, name: str) -> None:
        end = time.monotonic() + PATIENCE
        while (done := self.run(name, "true")).returncode:
            if time.monotonic() > end:
                log = (self._folder / f"sshd.{name}").read_text()
                raise TimeoutError(f"sshd does not start: {done.stderr}{log}")
            time.sleep(0.1)

    def run(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell command on a host, from the first host."""
        return self._hosts[0].run(
            [*shlex.split(self.command), name, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def __exit__(self, *_: Any) -> None:
        pass  # the hosts kill the processes that run on them
