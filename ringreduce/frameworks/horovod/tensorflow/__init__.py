"""Horovod's API for TensorFlow 2: ``import ringreduce.horovod.tensorflow as hvd``. docs/frameworks.md describes it."""

from __future__ import annotations

import ringreduce.frameworks.tensorflow  # noqa: F401  # says what is missing, if TensorFlow is
from ringreduce.frameworks.horovod import common
from ringreduce.frameworks.horovod.common import *  # noqa: F403
from ringreduce.frameworks.horovod.job import join
from ringreduce.frameworks.horovod.keras.optimizer import DistributedOptimizer
from ringreduce.frameworks.horovod.tensorflow import functions, operations
from ringreduce.frameworks.horovod.tensorflow.compression import Compression
from ringreduce.frameworks.horovod.tensorflow.functions import *  # noqa: F403
from ringreduce.frameworks.horovod.tensorflow.operations import *  # noqa: F403
from ringreduce.frameworks.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from ringreduce.frameworks.horovod.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)

__all__ = [
    "Compression", "DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape",
    "SyncBatchNormalization", "join",
]  # fmt: skip
__all__ += common.__all__
__all__ += functions.__all__
__all__ += operations.__all__
