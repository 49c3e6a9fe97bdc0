"""What launchers tell their processes: which rank of how many each is, on how many hosts, and where all can meet."""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ringreduce.start import munge
from ringreduce.start.orphans import ancestors

__all__ = ["Launched", "across_hosts", "launched", "place_to_meet"]


class Launched(NamedTuple):
    """What a launcher told this process."""

    launcher: str
    rank: int
    size: int
    job: str  # equal on all ranks of a job, different from other jobs'


def launched(env: Mapping[str, str]) -> Launched | None:
    """Reads what torchrun, Open MPI, MPICH/Intel MPI (Hydra) or Slurm have put into the environment."""

    def read(launcher: str, rank: str, size: str, job: str) -> Launched | None:
        if rank not in env or size not in env:
            return None
        return Launched(launcher, int(env[rank]), int(env[size]), job)

    def value(*names: str) -> str:
        return "/".join(env.get(name, "") for name in names)

    # A batch script has the variables of a rank, too, but is none: it is of no step. With --mpi=pmi2 srun sets some of
    # Hydra's variables, and what Hydra starts by srun has Slurm's.
    step = env.get("SLURM_STEP_ID")
    hydra = "MPI_LOCALNRANKS" in env or not step
    return (
        read("torchrun", "RANK", "WORLD_SIZE", value("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))
        or read("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", value("PMIX_NAMESPACE"))
        or (read("hydra", "PMI_RANK", "PMI_SIZE", value("PMI_PORT") or _proxy()) if hydra else None)
        or (
            read("slurm", "SLURM_PROCID", "SLURM_NTASKS", value("SLURM_JOB_ID", "SLURM_STEP_ID"))
            if step
            else None
        )
    )


def _proxy() -> str:
    """Hydra names no job; its ranks on one host come from one process, perhaps through scripts."""
    pids = list(ancestors())
    with contextlib.suppress(OSError):  # one has just ended
        pids = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith("hydra")] or pids
    return str(pids[0] if pids else 0)


# How many of the job's ranks, or hosts, the launchers say that there are.
_RANKS_HERE = {
    "torchrun": "LOCAL_WORLD_SIZE",
    "openmpi": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "hydra": "MPI_LOCALNRANKS",
}
_HOSTS = {"slurm": "SLURM_STEP_NUM_NODES"}
_SLURM_PORTS = range(20_000, 32_000)  # below what systems give to outgoing connections


def across_hosts(known: Launched, env: Mapping[str, str]) -> bool:
    """Whether the launcher says that the job's ranks are on several hosts, or may be.

    Who sets torchrun's variables by hand, or by another launcher than torchrun, does not always say how many ranks are
    here: then an address that is not this host's alone is one that other hosts have been told.
    """
    if known.launcher == "torchrun" and "LOCAL_WORLD_SIZE" not in env and env.get("MASTER_PORT"):
        return not re.fullmatch(r"localhost|127\.[\d.]+|::1|", env.get("MASTER_ADDR", ""))
    here = int(env.get(_RANKS_HERE.get(known.launcher, ""), known.size))
    hosts = int(env.get(_HOSTS.get(known.launcher, ""), 1))
    return here < known.size or hosts > 1


def place_to_meet(known: Launched, env: Mapping[str, str], timeout: float) -> Any:
    """A store, as :func:`ringreduce.init` takes it, by which the ranks of a job find each other.

    Raises:
        ValueError: they are on several hosts, and nothing says how they could.
    """
    place = env.get("RINGREDUCE_RENDEZVOUS")
    if place:
        return f"tcp://{place}"
    if not across_hosts(known, env):
        # The launchers' own stores need torch or MPI to be imported; ranks of one host can meet without.
        return f"{known.launcher}/{known.job}"
    if known.launcher == "torchrun":
        return _torchruns_store(known, env, timeout)
    if known.launcher == "slurm":
        port = _SLURM_PORTS[zlib.crc32(known.job.encode()) % len(_SLURM_PORTS)]
        kind = "tcp" if env.get("RINGREDUCE_SECRET") or not munge.is_there() else "munge"
        return f"{kind}://{_first_host(env.get('SLURM_STEP_NODELIST', ''))}:{port}"
    return _by_mpirun(known)


# So that keys are never used twice in a job, whose ranks all meet equally often.
_meetings = itertools.count(1)


def _by_mpirun(known: Launched) -> Any:
    """The key-value space that mpirun gives its job; where it gives none, mpi4py's communicator."""
    from ringreduce.start import pmi, pmix  # for those who meet so

    kind, space = ("pmix", pmix) if known.launcher == "openmpi" else ("pmi", pmi)
    if space.is_there():
        return f"{kind}://{next(_meetings)}"
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ValueError(
            f"the {known.size} ranks of this job are on several hosts, and mpirun's own {kind.upper()} cannot be "
            "reached from this process: install mpi4py for the MPI that has started it, or set RINGREDUCE_RENDEZVOUS "
            "to host:port of a port that is free on rank 0's host, and RINGREDUCE_SECRET to a text that only they know "
            f"({error})"
        ) from error
    return MPI.COMM_WORLD


def _torchruns_store(known: Launched, env: Mapping[str, str], timeout: float) -> Any:
    from datetime import timedelta

    try:
        from torch._C._distributed_c10d import PrefixStore, TCPStore
    except ImportError as error:
        raise ValueError(
            f"the {known.size} ranks of this job may be on several hosts and would meet by torch's store: "
            "install torch; or set RINGREDUCE_RENDEZVOUS to host:port of a port that is free on rank 0's host, and "
            f"RINGREDUCE_SECRET to a text that only they know ({error})"
        ) from error

    opened_here = known.rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(
        env["MASTER_ADDR"], int(env["MASTER_PORT"]), known.size, opened_here, timedelta(seconds=timeout),
        wait_for_workers=False,
    )  # fmt: skip
    mine = PrefixStore(f"ringreduce/{known.job}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return LeftTogether(mine, known.rank, known.size)


class LeftTogether:
    """A store that rank 0 may be serving itself: it goes on until all others have read what they need."""

    _PATIENCE = 10.0  # seconds for ranks that have all come to read what is there

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.set, self.get = store.set, store.get
        self._store, self._rank, self._size = store, rank, size

    def leave(self) -> None:
        """Says that this rank needs the store no more; rank 0 waits until all have said so."""
        from datetime import timedelta

        with contextlib.suppress(RuntimeError):  # somebody has died, which others find out and say
            if self._rank != 0:
                self.set(f"left/{self._rank}", b"")
            else:
                others = [f"left/{rank}" for rank in range(1, self._size)]
                self._store.wait(others, timedelta(seconds=self._PATIENCE))


def _first_host(hosts: str) -> str:
    """Of a list as Slurm writes it: node[03-05,07],other."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,]*)", hosts)
    if not found:
        raise ValueError(f"SLURM_STEP_NODELIST names no host: {hosts!r}")
    return "".join(part or "" for part in found.groups())
