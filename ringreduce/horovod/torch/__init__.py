"""Horovod's API for torch: ``import ringreduce.horovod.torch as hvd``. docs/frameworks.md describes it."""

from __future__ import annotations

from typing import Any

from ringreduce.horovod.errors import HorovodInternalError
from ringreduce.horovod.job import (
    add_process_set,
    barrier,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)  # fmt: skip
from ringreduce.horovod.objects import allgather_object, broadcast_object
from ringreduce.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.horovod.queries import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)  # fmt: skip
from ringreduce.horovod.reductions import Op
from ringreduce.horovod.torch import operations
from ringreduce.horovod.torch.compression import Compression
from ringreduce.horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters
from ringreduce.horovod.torch.operations import *  # noqa: F403
from ringreduce.horovod.torch.optimizer import DistributedOptimizer
from ringreduce.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "Max", "Min", "ProcessSet",
    "Product", "Sum", "SyncBatchNorm", "add_process_set", "allgather_object", "barrier", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized",
    "join", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank",
    "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip
__all__ += operations.__all__

Average, Sum, Adasum, Min, Max, Product = Op


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(
            "ringreduce has no horovod.torch.elastic; docs/frameworks.md lists what there is"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
