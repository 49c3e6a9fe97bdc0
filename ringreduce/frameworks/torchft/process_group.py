"""The process group."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch._C._distributed_c10d import Store, _DistributedBackendOptions
from torch.distributed import ProcessGroup
from torchft.process_group import ProcessGroupWrapper

from ringreduce.frameworks import torch as backend

__all__ = ["ProcessGroupRingreduce"]


class ProcessGroupRingreduce(ProcessGroupWrapper):  # type: ignore[misc]
    """Takes the place of torchft's ``ProcessGroupGloo``, with the same arguments. For tensors in CPU memory.

    The manager reconfigures it for each quorum. Unlike Gloo's, it has ``reduce_scatter``, too. If a replica dies,
    operations of the others raise within a second, and the manager leaves out that step.

    Args:
        timeout: when meeting the other replicas, and later every operation, gives up.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        options = _DistributedBackendOptions()
        options.store, options.group_rank, options.group_size = store, rank, world_size
        options.timeout = self._timeout
        custom = ProcessGroup.BackendType.CUSTOM
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(custom)
        group._register_backend(torch.device("cpu"), custom, backend._create(options, None))
        return group

    def getBackendName(self) -> str:
        return "torchft-ringreduce"
