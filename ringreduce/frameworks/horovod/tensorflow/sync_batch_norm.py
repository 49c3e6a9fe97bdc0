"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.tensorflow.operations import allreduce

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """``keras.layers.BatchNormalization`` over all ranks of a process set. The arguments are Keras's.

    A rank that does not belong to the set normalises its own batches.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        super().__init__(*args, **options)
        self._process_set = process_set
        self.supports_jit = False

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if not self._process_set.included():
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        axes = self._reduction_axes
        weights = (
            tf.ones_like(inputs)
            if mask is None
            else tf.ones_like(inputs) * tf.cast(mask, inputs.dtype)[..., None]
        )
        weighted = inputs * weights
        sums = [tf.reduce_sum(x, axes, keepdims=True) for x in (weighted, weighted * inputs, weights)]
        total, squares, count = tf.unstack(
            allreduce(tf.stack(sums), op=Op.Sum, process_set=self._process_set)
        )
        count = tf.maximum(count, 1.0)
        mean = total / count
        variance = tf.maximum(squares / count - mean * mean, 0.0)
        return tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
