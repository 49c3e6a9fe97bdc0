"""Horovod's API for Keras 3 on TensorFlow: ``import ringreduce.horovod.keras as hvd``.

docs/frameworks.md describes it.
"""

from __future__ import annotations

from typing import Any

import ringreduce.frameworks.tensorflow.keras  # says what is missing, if TensorFlow or Keras is
from ringreduce.frameworks.horovod import common
from ringreduce.frameworks.horovod.common import *  # noqa: F403
from ringreduce.frameworks.horovod.common import Average
from ringreduce.frameworks.horovod.tensorflow import operations
from ringreduce.frameworks.horovod.tensorflow.compression import Compression
from ringreduce.frameworks.horovod.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
)

ringreduce.frameworks.tensorflow.keras.check()

from ringreduce.frameworks.horovod.keras import callbacks  # noqa: E402
from ringreduce.frameworks.horovod.keras.optimizer import (  # noqa: E402
    Distributed,
    DistributedOptimizer,
    PartialDistributedOptimizer,
)

__all__ = [
    "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "allgather", "allgather_object", "allreduce",
    "broadcast", "broadcast_global_variables", "broadcast_object", "broadcast_variables", "callbacks", "load_model",
    "reducescatter",
]  # fmt: skip
__all__ += common.__all__


def _value(result: Any) -> Any:
    return result.numpy() if hasattr(result, "numpy") else result


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: Any = None, compression: Any = Compression.none,
) -> Any:  # fmt: skip
    """Returns the combination of the ranks' values: a NumPy array; in a tf.function, a tensor."""
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _value(
        operations.allreduce(value, average, name=name, op=op, compression=compression, **scales)  # type: ignore[arg-type]
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Returns the ranks' values, concatenated along the first axis: a NumPy array; in a tf.function, a tensor."""
    return _value(operations.allgather(value, name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the root's value: a NumPy array; in a tf.function, a tensor."""
    return _value(operations.broadcast(value, root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """Returns this rank's rows of the combination of the ranks' values: a NumPy array; in a tf.function, a tensor."""
    return _value(operations.reducescatter(value, name=name, op=op))


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:  # fmt: skip
    """Loads a Keras model, and makes its optimizer a DistributedOptimizer, which keeps its state.

    Args:
        custom_optimizers: a list of classes of optimizers that Keras does not know.
        custom_objects: what else Keras does not know, by name.
        compression: how gradients travel.
        legacy_opts: ignored: Keras 3 has no other optimizers.
    """
    import keras

    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.saving.load_model(filepath, custom_objects=known)
    if model.optimizer is not None and not isinstance(model.optimizer, Distributed):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        model.jit_compile = False
    return model
