"""How ranks find each other: one idea, ``exchange(bytes) -> list[bytes]``, and several ways to get one.

An exchange is collective: each rank gives a blob, and gets everybody's in rank order. The engine needs nothing
else to connect shared memory; it knows neither launchers nor stores.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ringreduce import _engine
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.errors import TimeoutError

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
        or read(
            "hydra", "PMI_RANK", "PMI_SIZE", value("PMI_PORT", "PMI_FD", "HYDI_CONTROL_FD") + _parent(env)
        )
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

    Raises:
        ValueError: rank or size is missing or out of range.
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
        return Communicator(_engine.connect(rank, size, exchange, timeout), timeout)


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


_rounds = 0  # of exchanges through stores, so that keys are never used twice


def _through_store(store: Any, rank: int, size: int) -> Exchange:
    def exchange(blob: bytes) -> list[bytes]:
        global _rounds
        _rounds += 1
        store.set(f"ringreduce/{_rounds}/{rank}", blob)
        return [bytes(store.get(f"ringreduce/{_rounds}/{other}")) for other in range(size)]

    return exchange


def _meet(name: str, rank: int, size: int, timeout: float) -> _Meeting:
    """Ranks of one host meet at an abstract Unix socket, which vanishes with its owner, rank 0.

    Both ends check that the other process belongs to the same user: the kernel vouches for that.
    """
    digest = hashlib.sha256(f"{os.getuid()}/{name}".encode()).hexdigest()[:32]
    address = f"\0ringreduce-{digest}"
    deadline = time.monotonic() + timeout
    if rank == 0:
        return _host(address, size, deadline)
    connection = _dial(address, deadline)
    connection.send_bytes(struct.pack("=i", rank))

    def exchange(blob: bytes) -> list[bytes]:
        connection.send_bytes(blob)
        return [_receive(connection, deadline, "rank 0") for _ in range(size)]

    return _Meeting(exchange, connection.close)


def _host(address: str, size: int, deadline: float) -> _Meeting:
    peers: dict[int, Connection] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        _bind(listener, address, deadline)
        listener.listen(size)
        while len(peers) < size - 1:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                accepted, _ = listener.accept()
            except builtin_timeout as error:
                missing = sorted(set(range(1, size)) - set(peers))
                raise TimeoutError(
                    f"rank 0 timed out waiting for ranks {missing} to start", missing[0]
                ) from error
            if not _same_user(accepted):
                accepted.close()
                continue
            connection = Connection(accepted.detach())
            peers[struct.unpack("=i", _receive(connection, deadline, "a rank"))[0]] = connection

    def exchange(blob: bytes) -> list[bytes]:
        blobs = [blob] + [_receive(peers[r], deadline, f"rank {r}", r) for r in range(1, size)]
        for connection in peers.values():
            for each in blobs:
                connection.send_bytes(each)
        return blobs

    def close() -> None:
        for connection in peers.values():
            connection.close()

    return _Meeting(exchange, close)


builtin_timeout = (socket.timeout, BlockingIOError)


def _bind(listener: socket.socket, address: str, deadline: float) -> None:
    while True:
        try:
            listener.bind(address)
            return
        except OSError as error:
            # The job before this one may still be meeting under the same name.
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "rank 0 timed out: another job of the same name is still starting", 0
                ) from error
            time.sleep(0.01)


def _dial(address: str, deadline: float) -> Connection:
    pause = 0.001
    while True:
        dialled = socket.socket(socket.AF_UNIX)
        try:
            dialled.connect(address)
            if not _same_user(dialled):
                raise PermissionError("another user's process answers for rank 0")
            return Connection(dialled.detach())
        except (ConnectionError, FileNotFoundError) as error:
            dialled.close()
            if time.monotonic() > deadline:
                raise TimeoutError("timed out waiting for rank 0 to start", 0) from error
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)


def _same_user(connected: socket.socket) -> bool:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _receive(connection: Connection, deadline: float, who: str, rank: int | None = None) -> bytes:
    if not connection.poll(max(deadline - time.monotonic(), 0)):
        raise TimeoutError(f"timed out waiting for {who}", rank)
    try:
        return connection.recv_bytes()
    except EOFError as error:
        from ringreduce.errors import PeerLost

        raise PeerLost(f"{who} died while the ranks were connecting", rank) from error
