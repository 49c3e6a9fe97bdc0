"""The rendezvous of torch.distributed for processes that mpirun or srun started.

torch's default, ``env://``, needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets. Without RANK and
WORLD_SIZE it raises. This module makes it take them from the variables of Open MPI, MPICH, Intel MPI or Slurm, and the
address from rank 0, which opens a store at a free port.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

if TYPE_CHECKING:
    from ringreduce.start.launchers import Launched

Found = tuple[Any, int, int]  # a store, the rank and the world
Handler = Callable[..., Iterator[Found]]


def extend() -> None:
    """Makes torch's env:// use the launchers' variables where it would raise."""
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = extended(handlers["env"])


def extended(torchs: Handler) -> Handler:
    """Returns a handler of env:// that calls torch's, and falls back on the launchers' variables."""

    def env_rendezvous(url: str, timeout: timedelta | None = None, **others: Any) -> Iterator[Found]:
        if timeout is not None:
            others["timeout"] = timeout
        given = parse_qs(urlparse(url).query)
        if given.keys() & {"rank", "world_size"} or os.environ.get("RANK") or os.environ.get("WORLD_SIZE"):
            return torchs(url, **others)
        from ringreduce.start.launchers import launched

        known = launched(os.environ)
        if known is None:
            return torchs(url, **others)
        if os.environ.get("MASTER_ADDR") or os.environ.get("MASTER_PORT"):
            separator = "&" if given else "?"
            return torchs(f"{url}{separator}rank={known.rank}&world_size={known.size}", **others)
        return _through_meeting(known, timeout)

    return env_rendezvous


def _through_meeting(known: Launched, timeout: timedelta | None) -> Iterator[Found]:
    from torch.distributed.constants import default_pg_timeout

    from ringreduce.start.bootstrap import meeting_of
    from ringreduce.start.rendezvous.network_places import torch_store_of_rank_0

    timeout = default_pg_timeout if timeout is None else timeout
    with meeting_of(known, timeout.total_seconds()) as exchange:

        def told(places: list[str]) -> list[str]:
            return exchange("|".join(places).encode())[0].decode().split("|")

        store = torch_store_of_rank_0(known.rank, known.size, timeout, told)
    yield store, known.rank, known.size
    raise RuntimeError("env:// cannot be used for a second rendezvous of the same group")
