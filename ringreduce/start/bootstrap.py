"""Connects the ranks of a job through ``exchange(bytes) -> list[bytes]``, which several kinds of stores provide.

An exchange is collective: each rank passes a blob, and gets all ranks' blobs in rank order. The engine needs nothing
more to connect ranks, and knows neither launchers nor stores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from ringreduce import _engine, diagnosis, environment, log
from ringreduce._engine import values
from ringreduce.annotations import Transport
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.descriptors import above_standard
from ringreduce.errors import Error
from ringreduce.start.growing.origin import Origin, fingerprint_of, place_of
from ringreduce.start.launchers import (
    Launched,
    is_newcomer,
    launched,
    place_to_meet,
)

if TYPE_CHECKING:
    from ringreduce.start.growing.joining import Newcomer

__all__ = ["Exchange", "init", "join"]

Exchange = Callable[[bytes], list[bytes]]

TRANSPORTS = get_args(Transport)
_THROUGH_MPI = ("mpi", "shm+mpi")


@above_standard()
def init(
    rank: int | None = None,
    size: int | None = None,
    store: Any = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    transport: Transport | None = None,
    encrypt: bool | None = None,
    max_blocks: int | None = None,
    priority: int | None = None,
) -> Communicator:
    """Joins this process to its job and returns the communicator of all its ranks.

    Without arguments, it reads the environment variables of torchrun, mpirun (Open MPI, MPICH, Intel MPI) or Slurm's
    srun. A process that none of them started is a job of one rank. Ranks on one host need no setup. Ranks on several
    hosts meet

    - under torchrun, through its store;
    - under mpirun, through the key-value space of its job (PMIx or PMI);
    - under srun, at a port of the first host, authenticated by MUNGE;
    - or at a port of rank 0's host that ``RINGREDUCE_RENDEZVOUS=host:port`` names, with a secret in RINGREDUCE_SECRET.

    Args:
        rank: this process's rank. None takes it from the launcher.
        size: the number of ranks. None takes it from the launcher.
        store: how ranks find each other. A function ``exchange(bytes) -> list[bytes]``; an mpi4py communicator,
            which then also gives rank and size; an object with ``set`` and a ``get`` that blocks until the key exists,
            such as torch's TCPStore, through which one group meets at a time; the address "tcp://host:port" of a port
            on rank 0's host, with a secret in RINGREDUCE_SECRET; or a name that no other job of this user on this host
            uses at the same time. None uses the launcher's settings.
        timeout: the seconds after which connecting, and later every wait, gives up.
        reproducible: the value of :attr:`Communicator.reproducible`. None means True if RINGREDUCE_REPRODUCIBLE is 1
            in the environment. Must be the same on all ranks.
        transport: how bytes travel. "shm" is shared memory of one host, "tcp" sockets, "ofi" a fabric that libfabric
            reaches (docs/network.md), and "mpi" the MPI library that started the ranks. "shm+tcp", "shm+ofi" and
            "shm+mpi" use shared memory inside hosts and the other between hosts. "auto" is "shm+ofi" if
            libfabric reaches a fabric card of every host, and else "shm+tcp". If all ranks share a host, or no two do,
            a combination becomes one of its two parts; :attr:`Communicator.transport` says which. The MPI transports
            are built on first use (docs/mpi_transport.md); ranks then also meet through MPI, and ``store`` must be
            None or an mpi4py communicator. None takes RINGREDUCE_TRANSPORT, or else "auto". Must be the same on all
            ranks.
        encrypt: whether to encrypt all sockets, and the meeting at "tcp://host:port", with TLS 1.3 and a key made from
            RINGREDUCE_SECRET (docs/network.md). None means True if RINGREDUCE_TLS is 1 in the environment. Must be the
            same on all ranks.
        max_blocks: the thread blocks of its GPU that this group may use at a time, from 1 to 64: those of its kernels,
            messages included, and of NCCL's where it uses NCCL. It claims as many until it is closed. None takes a
            small part of the GPU (docs/gpu.md). If ranks differ, the smallest number counts. 0 asks for copy engines:
            copies between registered arrays take no blocks, and other calls as many as with None.
        priority: the priority of the group's own streams, as of ``torch.cuda.Stream``: 0 is the usual one, which None
            takes, and the GPU begins what is on streams of lower numbers first, down to -5 on recent ones. Calls with
            ``async_op=True`` run on these streams.

    Raises:
        ValueError: rank or size is missing or out of range; there is no such transport; ranks on several hosts have no
            way to meet; encryption is requested without a secret or OpenSSL; or an environment variable of ringreduce
            has an invalid value.
        RuntimeError: the MPI transport is requested, alone or with shm, and cannot be built.
        TimeoutError: not all ranks arrived in time.
        Error: the ranks disagree, or ``ringreduce run`` has started this rank again, so that it must call :func:`join`.
    """
    timeout = check(timeout, reproducible, transport, encrypt, max_blocks, priority)
    if store is not None and hasattr(store, "Get_rank"):
        rank = store.Get_rank() if rank is None else rank
        size = store.Get_size() if size is None else size
    known = launched(os.environ) if rank is None and size is None else None
    if known is not None:
        rank, size = known.rank, known.size
    if (rank is None) != (size is None):
        raise ValueError("give both rank and size, or neither")
    if rank is None or size is None:
        rank, size = 0, 1
    if known is not None and is_newcomer():
        raise Error(
            "this rank was started again while its group runs (RINGREDUCE_NEWCOMER is set): call ringreduce.join() "
            "instead of init()"
        )
    values.whole(size, "size", 1, 2**31 - 1)
    values.whole(rank, "rank", 0, size - 1)
    log.begin(rank)
    diagnosis.begin(rank)
    if store is None and known is None and size > 1:
        raise ValueError("store is required with rank and size: the ranks need it to meet")
    wanted = transport or os.environ.get("RINGREDUCE_TRANSPORT", "")
    job = _mpi_job(store, rank, size, timeout) if wanted in _THROUGH_MPI else None
    origin = Origin(store, known, transport or "", encrypt, reproducible, max_blocks, priority)
    meets = origin
    if job is not None and (store is None or hasattr(store, "Get_rank")):
        rank, meets = job.rank, replace(origin, store=job.exchange)
    with _exchange_for(meets, rank, size, timeout) as exchange:
        environment.check(os.environ, alone=size == 1)
        engine = origin.connect(rank, size, exchange, timeout, job)
    return _with_arrays(Communicator(engine, timeout, origin.growth))


def join(
    store: Any = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    transport: Transport | None = None,
    encrypt: bool | None = None,
    max_blocks: int | None = None,
    priority: int | None = None,
    fingerprint: str | bytes | None = None,
) -> Communicator:
    """Joins this process to a group that is running, and returns the communicator of all its ranks.

    Waits until the group calls :meth:`Communicator.grow`. The members of the group keep their order, and this process
    becomes one of the last ranks. If a member dies before this process is in, it asks again, until the timeout.

    A process that was started again (RINGREDUCE_NEWCOMER) takes its own place if the others still wait in init() for
    the one that died.

    Args:
        store: how the group can be found: what its ranks gave to :func:`ringreduce.init`, except a function or an
            mpi4py communicator. None uses the launcher's settings, which must be those of the group.
        timeout: the seconds after which joining, and later every wait, gives up.
        reproducible: as for :func:`ringreduce.init`, and the same as in the group.
        transport: as for :func:`ringreduce.init`, and the same as in the group. The MPI transports cannot be joined.
        encrypt: as for :func:`ringreduce.init`, and the same as in the group.
        max_blocks: as for :func:`ringreduce.init`.
        priority: as for :func:`ringreduce.init`.
        fingerprint: any text or bytes that must be equal to the group's, such as a hash of the model's configuration.

    Raises:
        ValueError: there is no way to find a group, or an argument is not valid.
        Error: the group does not let this process in: its version of ringreduce or one of the settings differs, or it
            could not be connected with all members.
        TimeoutError: no group let this process in before the timeout.
    """
    made = newcomer(store, timeout, reproducible, transport, encrypt, fingerprint, max_blocks, priority)
    return _with_arrays(made.wait())


def _with_arrays(comm: Communicator) -> Communicator:
    """Lets NumPy make large arrays that peers of this host can reach, if there are such peers."""
    if comm.size > 1 and "shm" in comm.transport and os.environ.get("RINGREDUCE_NUMPY_MEMORY") != "ordinary":
        _engine.allocate_arrays()
    return comm


def newcomer(
    store: Any,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    transport: Transport | None = None,
    encrypt: bool | None = None,
    fingerprint: str | bytes | None = None,
    max_blocks: int | None = None,
    priority: int | None = None,
) -> Newcomer:
    """Returns this process as one that joins a group, with the arguments of join()."""
    timeout = check(timeout, reproducible, transport, encrypt, max_blocks, priority)
    known = launched(os.environ) if store is None or is_newcomer() else None
    origin = Origin(store, known, transport or "", encrypt, reproducible, max_blocks, priority)
    digest = fingerprint_of(fingerprint)
    log.begin(0)
    from ringreduce.start.growing.joining import Newcomer  # imports sockets, which only this needs

    return Newcomer(origin, digest, timeout)


def check(
    timeout: float,
    reproducible: bool | None,
    transport: str | None,
    encrypt: bool | None = None,
    max_blocks: int | None = None,
    priority: int | None = None,
) -> float:
    """Returns the timeout. Raises TypeError or ValueError if an argument is not valid for init()."""
    _engine.check_gpu_options(max_blocks, priority)
    if transport is not None and values.text(transport, "transport") and transport not in TRANSPORTS:
        raise ValueError(
            f"transport must be {', '.join(TRANSPORTS[:-1])} or {TRANSPORTS[-1]}, not {transport!r}"
        )
    if encrypt is not None:
        values.flag(encrypt, "encrypt")
    if reproducible is not None:
        values.flag(reproducible, "reproducible")
    if timeout is None:
        raise TypeError("timeout must be a number of seconds, not None")
    return values.seconds(timeout, "timeout")


def _mpi_job(store: Any, rank: int, size: int, timeout: float) -> _engine.MpiJob:
    from ringreduce.build import mpi_transport as transport  # may run a compiler

    job = transport.join(store if transport.is_communicator(store) else None, timeout)
    if job.size != size:
        raise ValueError(
            f"this is rank {rank} of {size}, but the MPI that the mpi transport was built for has started {job.size}: "
            "the mpicc on the PATH (or in MPICC) must belong to the mpirun or srun that starts the ranks"
        )
    return job


def meeting_of(known: Launched, timeout: float) -> AbstractContextManager[Exchange]:
    """Returns a context manager in which the ranks of a launcher meet. Its value is an :data:`Exchange`."""
    return _exchange_for(Origin(None, known), known.rank, known.size, timeout)


@contextmanager
def _exchange_for(origin: Origin, rank: int, size: int, timeout: float) -> Iterator[Exchange]:
    """Lets the ranks meet, and ends the meeting when they are connected."""
    if size == 1:
        yield lambda blob: [blob]
        return
    store, known = origin.store, origin.known
    if store is None and known is not None:
        store = place_to_meet(known, os.environ, timeout)
    by = f", started by {known.launcher}," if known else ""
    where = f"at {store}" if isinstance(store, str) else f"through a {type(store).__name__}"
    log.say("meeting", log.level_of(rank), rank, f"{size} ranks{by} meet {where}")
    if hasattr(store, "allgather"):
        yield store.allgather
    elif (place := place_of(store)) is not None:
        from ringreduce.start.rendezvous import gathering  # imports sockets, which only this needs

        group = gathering.join(place, rank, size, time.monotonic() + timeout, origin.encrypts())
        try:
            yield group.exchange
        except ValueError as error:  # of this rank, which the others know nothing of
            group.tell(Error(f"rank {rank}: {error}"))
            raise
        finally:
            group.close()
    elif callable(store):
        yield store
    else:
        raise TypeError(
            f"store must be a name, a store, an mpi4py communicator or a function, not {type(store).__name__}"
        )
