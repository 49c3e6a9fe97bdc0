"""Reads the launchers' variables: a process's rank, the number of ranks and hosts, and where the ranks can meet."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ringreduce.descriptors import above_standard
from ringreduce.errors import Error
from ringreduce.hosts import addresses
from ringreduce.start import munge
from ringreduce.start.orphans import ancestors

__all__ = [
    "Launched",
    "across_hosts",
    "door_of",
    "hosts_of",
    "is_newcomer",
    "launched",
    "place_to_meet",
    "tell_launcher",
    "was_started_alone",
]


_NEWCOMER = "RINGREDUCE_NEWCOMER"


def is_newcomer() -> bool:
    """Returns whether the launcher has started this process again, while its group goes on."""
    return bool(os.environ.get(_NEWCOMER))


def tell_launcher() -> None:
    """Tells a launcher that has started this process again that the group has let it in."""
    descriptor = os.environ.pop(_NEWCOMER, "")
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISFIFO(os.fstat(int(descriptor)).st_mode):
            os.write(int(descriptor), b"x")
            os.close(int(descriptor))


class Launched(NamedTuple):
    """A process's place in a job, from its launcher."""

    launcher: str
    rank: int
    size: int
    job: str  # the same on all ranks of a job, and different from other jobs


def launched(env: Mapping[str, str]) -> Launched | None:
    """Reads the environment variables of torchrun, Open MPI, MPICH and Intel MPI (Hydra), or Slurm.

    Raises:
        ValueError: they are no numbers, or disagree.
    """

    def read(launcher: str, rank: str, size: str, job: str) -> Launched | None:
        if not env.get(rank) or not env.get(size):
            return None
        found = Launched(launcher, _number(env, rank), _number(env, size), job)
        if found.size > 2**31 - 1:
            raise ValueError(f"{size} must be an integer from 1 to 2147483647, not {found.size}")
        if not 0 <= found.rank < found.size:
            raise ValueError(
                f"{rank}={found.rank} and {size}={found.size} disagree: a rank is at least 0 and less than the "
                "number of ranks. They may be left from different jobs"
            )
        return found

    def value(*names: str) -> str:
        return "/".join(env.get(name, "") for name in names)

    # A batch script and the shell of salloc have the variables of a rank, but are of no step that srun has started, so
    # they are no ranks. With --mpi=pmi2 srun sets some of Hydra's variables, and processes that Hydra starts through
    # srun have Slurm's. SLURM_NTASKS may be that of the job.
    step = env.get("SLURM_STEP_ID")
    if step and _number(env, "SLURM_STEP_ID") >= _RESERVED_STEPS:
        step = None
    size = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    hydra = "MPI_LOCALNRANKS" in env or not step
    return (
        read("torchrun", "RANK", "WORLD_SIZE", value("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))
        or read("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", value("PMIX_NAMESPACE"))
        or (read("hydra", "PMI_RANK", "PMI_SIZE", value("PMI_PORT") or _proxy()) if hydra else None)
        or (read("slurm", "SLURM_PROCID", size, value("SLURM_JOB_ID", "SLURM_STEP_ID")) if step else None)
    )


def _number(env: Mapping[str, str], name: str) -> int:
    given = env.get(name, "")
    if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", given, re.ASCII):
        raise ValueError(f"{name} must be an integer, not {given!r}")
    return int(given)


def _ancestors_named(*beginnings: str) -> list[int]:
    found = []
    for pid in ancestors():
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text().startswith(beginnings):
                found.append(pid)
    return found


def _proxy() -> str:
    """Returns the pid of Hydra's proxy. Hydra does not name its jobs, but the proxy starts all ranks of a host."""
    return str(next(iter(_ancestors_named("hydra") or ancestors()), 0))


def _require_live(known: Launched, env: Mapping[str, str]) -> None:
    """Raises ValueError if the variables are left from an mpirun that has ended: nobody would come to the meeting."""
    if known.launcher == "openmpi":
        names = "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"
        folder = env.get("PMIX_SERVER_TMPDIR", "")
        live = bool(env.get("PMIX_NAMESPACE")) and (not folder or Path(folder).is_dir())
    elif known.launcher == "hydra":
        from ringreduce.start.launchers import pmi

        names = "PMI_RANK and PMI_SIZE"
        live = bool(env.get("PALS_APID") or env.get("FLUX_JOB_ID")) or pmi.is_there()
    else:
        return
    if not live and not _ancestors_named(*_MPIRUNS):
        raise ValueError(
            f"{names} say that this is rank {known.rank} of {known.size}, but no mpirun that is running has started "
            "this process, so the other ranks would not come: unset the variables if they are left from another "
            "job; or set RANK, WORLD_SIZE and RINGREDUCE_RENDEZVOUS if you start the ranks yourself"
        )


# The launchers' variables for the number of ranks on this host, and of hosts.
_RANKS_HERE = {
    "torchrun": "LOCAL_WORLD_SIZE",
    "openmpi": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "hydra": "MPI_LOCALNRANKS",
}
_HOSTS = {"slurm": "SLURM_STEP_NUM_NODES", "hydra": "FLUX_JOB_NNODES"}
_RESERVED_STEPS = (
    0xFFFFFFF0  # numbers of steps that are not srun's: of batch scripts, salloc's shell and others
)
_MPIRUNS = ("hydra", "mpirun", "mpiexec", "prte", "orte", "jsm")  # their commands and daemons begin so
_SLURM_PORTS = range(20_000, 32_000)  # below the ports that systems use for outgoing connections


def across_hosts(known: Launched, env: Mapping[str, str]) -> bool:
    """Returns whether the job's ranks are, or may be, on several hosts.

    If torchrun's variables were not set by torchrun, the number of local ranks may be missing. Then an address that
    other hosts can reach means that there are other hosts.
    """
    if known.launcher == "torchrun" and "LOCAL_WORLD_SIZE" not in env and env.get("MASTER_PORT"):
        return not re.fullmatch(r"localhost|127\.[\d.]+|::1|", env.get("MASTER_ADDR", ""))
    here, hosts = _RANKS_HERE.get(known.launcher, ""), _HOSTS.get(known.launcher, "")
    if known.launcher == "hydra" and not env.get(here):
        here = "PMI_LOCAL_SIZE"  # PALS
    least = min((_number(env, name) for name in (here, hosts) if env.get(name)), default=1)
    if least < 1:
        raise ValueError(f"{here or hosts} must be at least 1, not {least}")
    return bool(
        (env.get(here) and _number(env, here) < known.size) or (env.get(hosts) and _number(env, hosts) > 1)
    )


def place_to_meet(known: Launched, env: Mapping[str, str], timeout: float) -> Any:
    """Returns a store for :func:`ringreduce.init` through which the ranks of a job find each other.

    Raises:
        ValueError: the ranks are on several hosts and have no way to meet.
    """
    place = env.get("RINGREDUCE_RENDEZVOUS")
    if place:
        if not addresses(place):
            raise ValueError(
                "RINGREDUCE_RENDEZVOUS must be host:port, or host,host:port for a rank 0 on any of them, with a port "
                f"from 1 to 65535, not {place!r}"
            )
        return f"tcp://{place}"
    _require_live(known, env)
    if not across_hosts(known, env):
        # The launchers' own stores need imports of torch or MPI, which ranks on one host can do without.
        return f"{known.launcher}/{known.job}"
    if known.launcher == "torchrun":
        return _torchruns_store(known, env, timeout)
    if known.launcher == "slurm":
        return _slurms_place(hosts_of(env.get("SLURM_STEP_NODELIST", ""))[:1], known.job, env)
    return _by_mpirun(known)


def door_of(known: Launched, env: Mapping[str, str], timeout: float) -> Any:
    """Returns a store through which newcomers find the group of a job.

    Raises:
        ValueError: newcomers have no way to find it.
    """
    through = {"openmpi": "mpirun", "hydra": "mpirun"}
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        through["torchrun"] = "a store of rank 0"
    where = through.get(known.launcher)
    if where and not env.get("RINGREDUCE_RENDEZVOUS") and across_hosts(known, env):
        raise ValueError(
            f"the ranks of this job met through {where}, where newcomers cannot find them: set RINGREDUCE_RENDEZVOUS "
            "to the host:port of a free port on rank 0's host, or to host,host:port if it may be on any of these, and "
            "RINGREDUCE_SECRET to a text that only the ranks know"
        )
    if known.launcher == "slurm" and not env.get("RINGREDUCE_RENDEZVOUS"):
        # Of the job and on any of its hosts: newcomers may be another step, and the group may lose its first host.
        job, hosts = env.get("SLURM_JOB_ID", ""), hosts_of(env.get("SLURM_JOB_NODELIST", "localhost"))
        return f"slurm/{job}" if len(hosts) == 1 else _slurms_place(hosts, f"{job}/door", env)
    return place_to_meet(known, env, timeout)


def _slurms_place(hosts: list[str], name: str, env: Mapping[str, str]) -> str:
    """Returns a port of these hosts, the same one for the same name."""
    port = _SLURM_PORTS[zlib.crc32(name.encode()) % len(_SLURM_PORTS)]
    kind = "tcp" if env.get("RINGREDUCE_SECRET") or not munge.is_there() else "munge"
    return f"{kind}://{','.join(hosts)}:{port}"


# Numbers the meetings, so that no key is used twice. All ranks of a job meet equally often.
_meetings = itertools.count(1)


def _by_mpirun(known: Launched) -> Any:
    """Returns the key-value space of mpirun, or mpi4py's communicator if this process cannot reach it."""
    from ringreduce.start.launchers import (
        pmi,  # only needed here
        pmix,
    )

    kind, space = ("pmix", pmix) if known.launcher == "openmpi" else ("pmi", pmi)
    if space.is_there():
        return f"{kind}://{next(_meetings)}"
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ValueError(
            f"the {known.size} ranks of this job are on several hosts, and this process cannot reach mpirun's "
            f"{kind.upper()}. Install mpi4py for the MPI that started it; or set RINGREDUCE_RENDEZVOUS to the "
            "host:port of a free port on rank 0's host, and RINGREDUCE_SECRET to a text that only the ranks know "
            f"({error})"
        ) from error
    return MPI.COMM_WORLD


def was_started_alone(env: Mapping[str, str], timeout: float) -> bool:
    """Returns whether an agent of torchrun has started this process again, while those of other agents go on.

    Only with ``--rdzv-backend static`` does each agent of several restart its own ranks and no others. It then keeps
    its notes in the store that ranks get, as agents with other backends do not.
    """
    known = launched(env)
    if known is None or known.launcher != "torchrun" or env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    if env.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or env.get("GROUP_WORLD_SIZE", "1") == "1":
        return False
    notes = f"{env.get('TORCHELASTIC_RUN_ID')}/torchelastic/assigned_ranks/{env.get('GROUP_RANK')}"
    return bool(_agents_store(known, env, timeout).check([notes]))


def _torchruns_store(known: Launched, env: Mapping[str, str], timeout: float) -> Any:
    try:
        from torch._C._distributed_c10d import PrefixStore
    except ImportError as error:
        raise ValueError(
            f"the {known.size} ranks of this job may be on several hosts, and need torch's store to meet. Install "
            "torch; or set RINGREDUCE_RENDEZVOUS to the host:port of a free port on rank 0's host, and "
            f"RINGREDUCE_SECRET to a text that only the ranks know ({error})"
        ) from error

    return PrefixStore(f"ringreduce/{known.job}", _agents_store(known, env, timeout))


_stores: dict[tuple[str, int], Any] = {}  # of agents. A lost agent shows at once on a connection that is open


@above_standard()
def _agents_store(known: Launched, env: Mapping[str, str], timeout: float) -> Any:
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    host, port = env.get("MASTER_ADDR", ""), _number(env, "MASTER_PORT")
    if not host or not 0 < port < 65536:
        raise ValueError(
            f"MASTER_ADDR must be rank 0's host and MASTER_PORT a port from 1 to 65535, not {host!r} and {port}"
        )
    if (host, port) in _stores:
        return _stores[host, port]
    of_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    opened_here = known.rank == 0 and not of_agent
    try:
        store = TCPStore(
            host, port, known.size, opened_here, timedelta(seconds=timeout), wait_for_workers=False
        )
    except RuntimeError as error:
        raise Error(
            f"torch's store at MASTER_ADDR={host}, MASTER_PORT={port} cannot be used: {error}"
        ) from error
    if of_agent:
        _stores[host, port] = store
    return store


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
