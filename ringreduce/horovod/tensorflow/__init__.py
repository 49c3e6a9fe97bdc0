"""Horovod's API for TensorFlow 2: ``import ringreduce.horovod.tensorflow as hvd``. docs/frameworks.md describes it."""

from __future__ import annotations

import ringreduce.tensorflow  # noqa: F401  # says what is missing, if TensorFlow is
from ringreduce.horovod import common
from ringreduce.horovod.common import *  # noqa: F403
from ringreduce.horovod.job import join
from ringreduce.horovod.keras.optimizer import DistributedOptimizer
from ringreduce.horovod.tensorflow import functions, operations
from ringreduce.horovod.tensorflow.compression import Compression
from ringreduce.horovod.tensorflow.functions import *  # noqa: F403
from ringreduce.horovod.tensorflow.operations import *  # noqa: F403
from ringreduce.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from ringreduce.horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "Compression", "DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape",
    "SyncBatchNormalization", "join",
]  # fmt: skip
__all__ += common.__all__
__all__ += functions.__all__
__all__ += operations.__all__
