"""The names that Horovod's modules for all frameworks have."""

from __future__ import annotations

from ringreduce.frameworks.horovod.internal_error import HorovodInternalError
from ringreduce.frameworks.horovod.job import (
    add_process_set,
    barrier,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)  # fmt: skip
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.queries import (
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
from ringreduce.frameworks.horovod.reductions import Op

__all__ = [
    "Adasum", "Average", "HorovodInternalError", "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set",
    "barrier", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built",
    "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "remove_process_set", "rocm_built", "shutdown", "size",
    "start_timeline", "stop_timeline",
]  # fmt: skip

Average, Sum, Adasum, Min, Max, Product = Op
