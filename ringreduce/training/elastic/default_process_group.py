"""torch's default process group, on the ranks of a communicator."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ringreduce.communicator import Communicator
from ringreduce.start.rendezvous.network_places import torch_store_of_rank_0

__all__ = ["init_process_group"]

_made_for: Any = None  # a weak reference to the communicator whose ranks the default group has


def init_process_group(comm: Communicator, backend: str = "ringreduce", **arguments: Any) -> None:
    """Makes torch's default process group of the ranks of a communicator. Every rank must call it.

    It takes the place of torch.distributed.init_process_group, and destroys an existing default group.
    :func:`ringreduce.elastic.steps` calls it when ranks are lost or join, if the state holds a module that needs it.

    Args:
        comm: from :func:`ringreduce.elastic.first_group`.
        backend: the name of the backend.
        arguments: further arguments of torch.distributed.init_process_group.
    """
    global _made_for
    if dist.is_initialized():
        if _made_for is not None and _made_for() is comm:
            return
        dist.destroy_process_group()
    timeout = timedelta(seconds=comm.timeout)
    dist.init_process_group(
        backend, store=_store(comm, timeout), rank=comm.rank, world_size=comm.size,
        **{"timeout": timeout, **arguments},
    )  # fmt: skip
    _made_for = weakref.ref(comm)


def _store(comm: Communicator, timeout: timedelta) -> Any:
    """Returns a store on rank 0, in which the ranks of the process group meet."""
    if comm.size == 1:
        return HashStore()
    return torch_store_of_rank_0(comm.rank, comm.size, timeout, comm.broadcast_object)
