"""Slurm's srun."""

from __future__ import annotations

import re
import zlib

from ringreduce.hosts import FREE_PORTS
from ringreduce.start import munge
from ringreduce.start.launchers.launcher import Env, Launched, Launcher, number

__all__ = ["Slurm", "hosts_of", "is_of_a_step"]

_RESERVED_STEPS = (
    0xFFFFFFF0  # numbers of steps that are not srun's: of batch scripts, salloc's shell and others
)


class Slurm(Launcher):
    name = "slurm"
    # The second may be that of the job.
    rank, sizes = "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    hosts = ("SLURM_STEP_NUM_NODES",)

    def has_started(self, env: Env) -> bool:
        return is_of_a_step(env)

    def job(self, env: Env) -> str:
        return "/".join(env.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))

    def place_across_hosts(self, known: Launched, env: Env, timeout: float) -> str:
        return _port_of(hosts_of(env.get("SLURM_STEP_NODELIST", ""))[:1], known.job, env)

    def door(self, known: Launched, env: Env, timeout: float) -> str:
        """Of the job and on any of its hosts: newcomers may be another step, and the group may lose its first host."""
        job, hosts = env.get("SLURM_JOB_ID", ""), hosts_of(env.get("SLURM_JOB_NODELIST", "localhost"))
        return f"{self.name}/{job}" if len(hosts) == 1 else _port_of(hosts, f"{job}/door", env)


def is_of_a_step(env: Env) -> bool:
    """Returns whether srun has started this process.

    A batch script and the shell of salloc have the variables of a rank, but are of no step, so they are no ranks.
    """
    return bool(env.get("SLURM_STEP_ID")) and number(env, "SLURM_STEP_ID") < _RESERVED_STEPS


def _port_of(hosts: list[str], name: str, env: Env) -> str:
    """Returns a port of these hosts, the same one for the same name."""
    port = FREE_PORTS[zlib.crc32(name.encode()) % len(FREE_PORTS)]
    kind = "tcp" if env.get("RINGREDUCE_SECRET") or not munge.is_there() else "munge"
    return f"{kind}://{','.join(hosts)}:{port}"


def hosts_of(text: str) -> list[str]:
    """Returns the hosts of a list in Slurm's format: node[03-05,07],other."""
    hosts = [host for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text) for host in _hosts_named(name)]
    if not hosts:
        raise ValueError(f"Slurm's list of the job's hosts does not name a host: {text!r}")
    return hosts


def _hosts_named(name: str) -> list[str]:
    before, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    numbers, _, after = rest.partition("]")
    found = []
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return [f"{before}{number}{end}" for number in found for end in _hosts_named(after)]
