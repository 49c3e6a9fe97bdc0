"""How ranks find each other: one idea, ``exchange(bytes) -> list[bytes]``, and several ways to get one.

An exchange is collective: each rank gives a blob, and gets everybody's in rank order. The engine needs nothing
else to connect shared memory; it knows neither launchers nor stores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ringreduce import _engine
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator

__all__ = ["Exchange", "init"]

Exchange = Callable[[bytes], list[bytes]]


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

    return (
        read("torchrun", "RANK", "WORLD_SIZE", value("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))
        or read("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", value("PMIX_NAMESPACE"))
        or read("hydra", "PMI_RANK", "PMI_SIZE", value("PMI_PORT") + _parent(env))
        or read("slurm", "SLURM_PROCID", "SLURM_NTASKS", value("SLURM_JOB_ID", "SLURM_STEP_ID"))
    )


def _parent(env: Mapping[str, str]) -> str:
    """Hydra names no job; its ranks on one host have one parent, the proxy."""
    return "" if "PMI_PORT" in env else str(os.getppid())


def init(
    rank: int | None = None,
    size: int | None = None,
    store: Any = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
) -> Communicator:
    """Joins this process to its job and returns the communicator of all its ranks.

    Without arguments it reads what torchrun, mpirun (Open MPI, MPICH, Intel MPI) or Slurm's srun have set; a
    process that none of them started is a job of one rank. Ranks must be processes of one user on one host.

    Args:
        rank, size: which rank this is, of how many; None: as the launcher says.
        store: how ranks find each other. A function ``exchange(bytes) -> list[bytes]``; an mpi4py communicator
            (which then also gives rank and size); an object with ``set`` and ``get`` that block until the key is
            there, such as torch's TCPStore; or a name that no other job of this user on this host uses at the
            same time. None: made from what the launcher has set.
        timeout: seconds after which connecting, and later every wait, gives up.
        reproducible: what :attr:`Communicator.reproducible` says of the communicator; None: whether
            RINGREDUCE_REPRODUCIBLE is 1 in the environment. All ranks must say the same.

    Raises:
        ValueError: rank or size is missing or out of range; or an environment variable of ours has no meaning.
        TimeoutError: not all ranks arrived in time.
    """
    if store is not None and hasattr(store, "Get_rank"):
        rank = store.Get_rank() if rank is None else rank
        size = store.Get_size() if size is None else size
    known = launched(os.environ) if rank is None and size is None else None
    if known is not None:
        rank, size = known.rank, known.size
    if (rank is None) != (size is None):
        raise ValueError("rank and size go together")
    if rank is None or size is None:
        rank, size = 0, 1
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"rank must be from 0 to size - 1; got rank {rank} of size {size}")
    if not timeout > 0:
        raise ValueError(f"timeout must be positive, not {timeout}")
    if store is None and known is None and size > 1:
        raise ValueError("store is needed when rank and size are given: how else would the ranks meet?")
    with _exchange_for(store, known, rank, size, timeout) as exchange:
        return Communicator(_engine.connect(rank, size, exchange, timeout, reproducible), timeout)


class _Meeting:
    """An exchange that is closed again when the ranks are connected."""

    def __init__(self, exchange: Exchange, close: Callable[[], None] = lambda: None) -> None:
        self._exchange = exchange
        self._close = close

    def __enter__(self) -> Exchange:
        return self._exchange

    def __exit__(self, *_: object) -> None:
        self._close()


def _exchange_for(store: Any, known: Launched | None, rank: int, size: int, timeout: float) -> _Meeting:
    if size == 1:
        return _Meeting(lambda blob: [blob])
    if store is None and known is not None:
        # The launchers' own stores need torch or MPI to be imported; ranks of one host can meet without.
        return _meet(f"{known.launcher}/{known.job}", rank, size, timeout)
    if isinstance(store, str):
        return _meet(store, rank, size, timeout)
    if hasattr(store, "allgather"):
        return _Meeting(store.allgather)
    if hasattr(store, "set") and hasattr(store, "get"):
        return _Meeting(_through_store(store, rank, size))
    if callable(store):
        return _Meeting(store)
    raise TypeError(
        f"store must be a name, a store, an mpi4py communicator or a function, not {type(store).__name__}"
    )


# By rank (several can be threads of this process): exchanges through stores, so that keys are never used twice.
_rounds: dict[int, int] = {}


def _through_store(store: Any, rank: int, size: int) -> Exchange:
    def exchange(blob: bytes) -> list[bytes]:
        _rounds[rank] = number = _rounds.get(rank, 0) + 1
        store.set(f"ringreduce/{number}/{rank}", blob)
        return [bytes(store.get(f"ringreduce/{number}/{other}")) for other in range(size)]

    return exchange


def _meet(name: str, rank: int, size: int, timeout: float) -> _Meeting:
    deadline = time.monotonic() + timeout
    from ringreduce import meeting  # sockets are for those who meet

    group = meeting.join(name, rank, size, deadline)
    return _Meeting(group.exchange, group.close)
