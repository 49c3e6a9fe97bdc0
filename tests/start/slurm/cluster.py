"""A Slurm cluster on this machine: a host of its own for the controller, and one for each node."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.network.hosts import Hosts

SOCKET = Path("/run/munge/munge.socket.2")
PATIENCE = 30.0  # seconds for daemons to start

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=host0
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
LaunchParameters=use_interactive_step
InteractiveStepOptions="--interactive --preserve-env $SHELL"
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
NodeName=host[1-{nodes}] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no cluster here; None if there can."""
    for program in ("munged", "slurmctld", "slurmd", "srun", "sbatch"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin"):
            return f"{program} is missing: apt-get install slurm-wlm munge"
    return Hosts.permitted()


class Cluster:
    """``nodes`` hosts host1, host2, ... with so many cores each; commands run on host0."""

    def __init__(self, nodes: int = 2, cpus: int = 16) -> None:
        self.hosts = Hosts(nodes + 1, rate=None)
        self._nodes, self._cpus = nodes, cpus
        self._munged: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Cluster:
        self._folder = tempfile.TemporaryDirectory(prefix="slurm-")
        self.folder = Path(self._folder.name)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        self._start_munge()
        self.hosts.__enter__()
        text = CONFIGURATION.format(folder=self.folder, nodes=self._nodes, cpus=self._cpus)
        (self.folder / "slurm.conf").write_text(text)
        # Version 2 would have to be mounted.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in ("state", *(f"spool.host{number}" for number in range(1, self._nodes + 1))):
            (self.folder / name).mkdir()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": self.environment()}
        self.hosts[0].popen(["slurmctld", "-D"], **quiet)
        for number in range(1, self._nodes + 1):
            self.hosts[number].popen(["slurmd", "-D", "-N", f"host{number}"], **quiet)
        end = time.monotonic() + PATIENCE
        while self.run(["sinfo", "-h", "-o", "%D%t"]).stdout.split() != [f"{self._nodes}idle"]:
            if time.monotonic() > end:
                raise TimeoutError("Slurm does not start:\n" + self.logs())
            time.sleep(0.1)

    def _start_munge(self) -> None:
        """Unless there is one that serves already."""
        if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
            return
        SOCKET.parent.mkdir(exist_ok=True)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        files = [f"--{name}={self.folder}/munged.{name}" for name in ("log-file", "seed-file", "pid-file")]
        command = ["munged", "--foreground", "--force", f"--socket={SOCKET}", f"--key-file={key}", *files]
        self._munged = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment()
        )
        end = time.monotonic() + PATIENCE
        while subprocess.run(["munge", "-n"], capture_output=True).returncode:
            if time.monotonic() > end or self._munged.poll() is not None:
                raise TimeoutError("munged does not start:\n" + self.logs())
            time.sleep(0.05)

    def environment(self, **variables: str) -> dict[str, str]:
        """What programs on the cluster get: nothing of ours but what is given."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("RINGREDUCE_", "SLURM_"))
        }
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        return {**kept, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf"), **variables}

    def run(
        self, command: Sequence[str], timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on host0."""
        return self.hosts[0].run(
            list(command), env=self.environment(**variables), capture_output=True, text=True, timeout=timeout
        )

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*log*"))
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hosts.__exit__(kind, error, trace)
        if self._munged is not None:
            self._munged.terminate()
            self._munged.wait()
        self._folder.cleanup()
