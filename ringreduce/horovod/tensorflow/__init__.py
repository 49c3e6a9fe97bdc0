"""Horovod's API for TensorFlow 2: ``import ringreduce.horovod.tensorflow as hvd``. docs/frameworks.md describes it."""

from __future__ import annotations

import ringreduce.tensorflow  # noqa: F401  # says what is missing, if TensorFlow is
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
from ringreduce.horovod.keras.optimizer import DistributedOptimizer
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
from ringreduce.horovod.tensorflow import functions, operations
from ringreduce.horovod.tensorflow.compression import Compression
from ringreduce.horovod.tensorflow.functions import *  # noqa: F403
from ringreduce.horovod.tensorflow.operations import *  # noqa: F403
from ringreduce.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from ringreduce.horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer", "HorovodInternalError",
    "Max", "Min", "PartialDistributedGradientTape", "ProcessSet", "Product", "Sum", "SyncBatchNormalization",
    "add_process_set", "barrier", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "join",
    "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank",
    "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip
__all__ += functions.__all__
__all__ += operations.__all__

Average, Sum, Adasum, Min, Max, Product = Op
