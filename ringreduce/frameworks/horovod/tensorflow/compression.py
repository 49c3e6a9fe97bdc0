"""Compression of TensorFlow's tensors before an all-reduce."""

import tensorflow as tf

from ringreduce.frameworks.horovod.compression import Compressor, compressions

__all__ = ["Compression", "Compressor"]

Compression = compressions(lambda tensor: tensor.dtype.is_floating, tf.cast, tf.float16)
FP16Compressor = Compression.fp16
