"""How ranks find each other: one idea, ``exchange(bytes) -> list[bytes]``, and several ways to get one.

An exchange is collective: each rank gives a blob, and gets everybody's in rank order. The engine needs nothing
else to connect ranks; it knows neither launchers nor stores.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from ringreduce import _engine, log
from ringreduce._engine import values
from ringreduce.annotations import Transport
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.errors import TimeoutError
from ringreduce.start.launchers import Launched, LeftTogether, launched, place_to_meet

__all__ = ["Exchange", "init"]

Exchange = Callable[[bytes], list[bytes]]

_THROUGH_MPI = ("mpi", "shm+mpi")


def init(
    rank: int | None = None,
    size: int | None = None,
    store: Any = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    transport: Transport | None = None,
    encrypt: bool | None = None,
) -> Communicator:
    """Joins this process to its job and returns the communicator of all its ranks.

    Without arguments it reads what torchrun, mpirun (Open MPI, MPICH, Intel MPI) or Slurm's srun have set; a
    process that none of them started is a job of one rank. On one host ranks meet without more; across hosts
    through torchrun's store, through what mpirun keeps for its job (PMIx or PMI), under Slurm at a port of the first
    host, where MUNGE vouches for them, or at a port of rank 0's host that RINGREDUCE_RENDEZVOUS=host:port names, with
    a secret in RINGREDUCE_SECRET.

    Args:
        rank, size: which rank this is, of how many; None: as the launcher says.
        store: how ranks find each other. A function ``exchange(bytes) -> list[bytes]``; an mpi4py communicator
            (which then also gives rank and size); an object with ``set`` and ``get`` that block until the key is
            there, such as torch's TCPStore; a place to meet, "tcp://host:port" with rank 0's host (and a secret
            in RINGREDUCE_SECRET); or a name that no other job of this user on this host uses at the same time.
            None: made from what the launcher has set.
        timeout: seconds after which connecting, and later every wait, gives up.
        reproducible: what :attr:`Communicator.reproducible` says of the communicator; None: whether
            RINGREDUCE_REPRODUCIBLE is 1 in the environment. All ranks must say the same.
        transport: how bytes travel: "shm", shared memory of one host; "tcp", sockets; "mpi", the MPI library that
            has started the ranks; "shm+tcp" and "shm+mpi", shared memory between ranks of a host and the other between
            hosts; "auto", which is "shm+tcp". What comes of it is one of the two alone where all ranks share a host, or
            no two do; :attr:`Communicator.transport` says so. With MPI, for which the transport is built on first use
            (docs/mpi_transport.md), ranks meet through it, too, and ``store`` is None, or an mpi4py communicator. None:
            what RINGREDUCE_TRANSPORT says, else "auto". All ranks must say the same.
        encrypt: whether what goes over sockets, and meeting at "tcp://host:port", is encrypted by TLS 1.3, with a key
            made from RINGREDUCE_SECRET (docs/network.md). None: whether RINGREDUCE_TLS is 1 in the environment. All
            ranks must say the same.

    Raises:
        ValueError: rank or size is missing or out of range; there is no such transport; nothing says how ranks
            of several hosts can meet; encryption is wanted, and there is no secret, or no OpenSSL; or an environment
            variable of ours has no meaning.
        RuntimeError: the mpi transport is wanted, alone or with shm, and cannot be built.
        TimeoutError: not all ranks arrived in time.
    """
    timeout = check(timeout, reproducible, transport)
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
    values.whole(size, "size", 1, 2**31 - 1)
    values.whole(rank, "rank", 0, size - 1)
    log.begin(rank)
    if store is None and known is None and size > 1:
        raise ValueError("store is needed when rank and size are given: how else would the ranks meet?")
    wanted = transport or os.environ.get("RINGREDUCE_TRANSPORT", "")
    job = _mpi_job(store, rank, size, timeout) if wanted in _THROUGH_MPI else None
    if job is not None and (store is None or hasattr(store, "Get_rank")):
        rank, store = job.rank, job.exchange
    encrypts = os.environ.get("RINGREDUCE_TLS") == "1" if encrypt is None else encrypt
    with _exchange_for(store, known, rank, size, timeout, encrypts) as exchange:
        return Communicator(
            _engine.connect(rank, size, exchange, timeout, reproducible, transport or "", job, encrypt),
            timeout,
        )


def check(timeout: float, reproducible: bool | None, transport: str | None) -> float:
    """The timeout; raises TypeError or ValueError if one of them is not what init() takes."""
    if transport is not None:
        values.text(transport, "transport")
    if reproducible is not None:
        values.flag(reproducible, "reproducible")
    if timeout is None:
        raise TypeError("timeout must be a number of seconds, not None")
    return values.seconds(timeout, "timeout")


def _mpi_job(store: Any, rank: int, size: int, timeout: float) -> _engine.MpiJob:
    from ringreduce.mpi import transport  # a compiler may be needed

    job = transport.join(store if transport.is_communicator(store) else None, timeout)
    if job.size != size:
        raise ValueError(
            f"this is rank {rank} of {size}, but the MPI that the mpi transport was built for has started {job.size}: "
            "the mpicc on the PATH (or in MPICC) must be of the mpirun, or the srun, that starts the ranks"
        )
    return job


class _Meeting:
    """An exchange that is closed again when the ranks are connected. `leave`: what comes first if they are."""

    def __init__(
        self,
        exchange: Exchange,
        close: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._exchange = exchange
        self._close = close
        self._leave = leave

    def __enter__(self) -> Exchange:
        return self._exchange

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self._leave()
        self._close()


def meeting_of(known: Launched, timeout: float) -> _Meeting:
    """A meeting of the ranks that a launcher has started, as a context whose value is an :data:`Exchange`."""
    return _exchange_for(
        None, known, known.rank, known.size, timeout, os.environ.get("RINGREDUCE_TLS") == "1"
    )


def _exchange_for(
    store: Any, known: Launched | None, rank: int, size: int, timeout: float, encrypt: bool
) -> _Meeting:
    if size == 1:
        return _Meeting(lambda blob: [blob])
    if store is None and known is not None:
        store = place_to_meet(known, os.environ, timeout)
    by = f", started by {known.launcher}" if known else ""
    where = f"at {store}" if isinstance(store, str) else f"by a {type(store).__name__}"
    log.say("meeting", log.level_of(rank), rank, f"{size} ranks{by} meet {where}")
    if isinstance(store, str):
        return _meet(values.text(store, "store"), rank, size, timeout, encrypt)
    if hasattr(store, "allgather"):
        return _Meeting(store.allgather)
    if hasattr(store, "set") and hasattr(store, "get"):
        leave = store.leave if isinstance(store, LeftTogether) else lambda: None
        return _Meeting(_through_store(store, rank, size), leave=leave)
    if callable(store):
        return _Meeting(store)
    raise TypeError(
        f"store must be a name, a store, an mpi4py communicator or a function, not {type(store).__name__}"
    )


# By rank (several can be threads of this process): exchanges through stores, so that keys are never used twice.
_rounds: dict[int, int] = {}


def _through_store(store: Any, rank: int, size: int) -> Exchange:
    wipe = getattr(store, "delete_key", lambda key: store.set(key, b""))
    before: list[str] = []

    def exchange(blob: bytes) -> list[bytes]:
        _rounds[rank] = number = _rounds.get(rank, 0) + 1
        store.set(f"ringreduce/{number}/{rank}", blob)
        blobs: list[bytes] = []
        with log.waiting("meeting", rank, lambda: f"rank {len(blobs)} to start"):
            blobs.extend(look_up(f"ringreduce/{number}/{other}", other) for other in range(size))
        # Who has come so far has read what was there before. It may have held the job's secret; what comes last does
        # not.
        with contextlib.suppress(RuntimeError):  # some stores keep what they have
            for key in before:
                wipe(key)
        before[:] = [f"ringreduce/{number}/{rank}"]
        return blobs

    def look_up(key: str, other: int) -> bytes:
        try:
            return bytes(store.get(key))
        except RuntimeError as error:  # torch's stores have errors of their own for a time that is up
            if "timeout" not in str(error).lower():
                raise
            raise TimeoutError(f"rank {rank} timed out waiting for rank {other} to start", other) from error

    return exchange


def _meet(name: str, rank: int, size: int, timeout: float, encrypt: bool) -> _Meeting:
    deadline = time.monotonic() + timeout
    from ringreduce.start import meeting  # sockets are for those who meet

    group = meeting.join(name, rank, size, deadline, encrypt)
    return _Meeting(group.exchange, group.close)
