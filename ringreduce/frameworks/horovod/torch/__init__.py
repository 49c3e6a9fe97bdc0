"""Horovod's API for torch: ``import ringreduce.horovod.torch as hvd``. docs/frameworks.md describes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ringreduce.frameworks import torch as backend
from ringreduce.frameworks.horovod import common, job
from ringreduce.frameworks.horovod.common import *  # noqa: F403
from ringreduce.frameworks.horovod.job import join
from ringreduce.frameworks.horovod.pickled import allgather_object, broadcast_object
from ringreduce.frameworks.horovod.process_sets import ProcessSet
from ringreduce.frameworks.horovod.torch import operations
from ringreduce.frameworks.horovod.torch.compression import Compression
from ringreduce.frameworks.horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters
from ringreduce.frameworks.horovod.torch.operations import *  # noqa: F403
from ringreduce.frameworks.horovod.torch.optimizer import DistributedOptimizer
from ringreduce.frameworks.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression", "DistributedOptimizer", "SyncBatchNorm", "allgather_object", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "join",
]  # fmt: skip
__all__ += common.__all__
__all__ += operations.__all__


@functools.wraps(job.init)  # type: ignore[no-redef]
def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    job.init(comm, process_sets)
    backend.let_tensors_move(job.size())


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(
            "ringreduce has no horovod.torch.elastic; docs/frameworks.md lists what there is"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
