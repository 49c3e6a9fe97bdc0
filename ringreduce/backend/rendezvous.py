"""How processes that mpirun or srun has started meet for torch.distributed.

torch's own ``env://``, the default, wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets. Where
there is neither RANK nor WORLD_SIZE it raises; here it learns them from the variables of Open MPI, MPICH, Intel MPI
or Slurm, and the address from rank 0, which opens a store at a port that is free.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

if TYPE_CHECKING:
    from ringreduce.launchers import Launched

Found = tuple[Any, int, int]  # a store, the rank and the world
Handler = Callable[..., Iterator[Found]]


def extend() -> None:
    """Lets torch's env:// take what the launchers have set, where it would raise."""
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = extended(handlers["env"])


def extended(torchs: Handler) -> Handler:
    """The handler of env:// that falls back on the launchers; else it is torch's."""

    def env_rendezvous(url: str, timeout: timedelta | None = None, **others: Any) -> Iterator[Found]:
        if timeout is not None:
            others["timeout"] = timeout
        given = parse_qs(urlparse(url).query)
        if given.keys() & {"rank", "world_size"} or os.environ.get("RANK") or os.environ.get("WORLD_SIZE"):
            return torchs(url, **others)
        known = _launched(os.environ)
        if known is None:
            return torchs(url, **others)
        if os.environ.get("MASTER_ADDR") or os.environ.get("MASTER_PORT"):
            separator = "&" if given else "?"
            return torchs(f"{url}{separator}rank={known.rank}&world_size={known.size}", **others)
        return _through_meeting(known, timeout)

    return env_rendezvous


def _launched(env: Mapping[str, str]) -> Launched | None:
    from ringreduce.launchers import launched

    known = launched(env)
    # A batch script has the variables of a rank too, but is none.
    return None if known and known.launcher == "slurm" and "SLURM_STEP_ID" not in env else known


def _through_meeting(known: Launched, timeout: timedelta | None) -> Iterator[Found]:
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.constants import default_pg_timeout

    from ringreduce import meeting

    _check_one_host(known, os.environ)
    timeout = default_pg_timeout if timeout is None else timeout
    deadline = time.monotonic() + timeout.total_seconds()
    group = meeting.join(f"torch/{known.launcher}/{known.job}", known.rank, known.size, deadline)
    address = "127.0.0.1"
    if known.rank == 0:
        store = TCPStore(address, 0, known.size, True, timeout, wait_for_workers=False)
        group.exchange(str(store.port).encode())
    else:
        port = int(group.exchange(b"")[0])
        store = TCPStore(address, port, known.size, False, timeout)
    group.close()
    yield store, known.rank, known.size
    raise RuntimeError("env:// cannot be used for a second rendezvous of the same group")


def _check_one_host(known: Launched, env: Mapping[str, str]) -> None:
    from ringreduce.launchers import across_hosts

    if across_hosts(known, env):
        raise ValueError(
            f"the {known.size} ranks of this job are on several hosts: set MASTER_ADDR to the name of rank 0's host "
            "and MASTER_PORT to a port that is free there"
        )
