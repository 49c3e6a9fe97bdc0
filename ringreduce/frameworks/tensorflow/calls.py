"""The functions of ringreduce.tensorflow."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from ringreduce.frameworks.tensorflow.operations import run
from ringreduce.frameworks.traced.call import Call, Kind, check_dtype
from ringreduce.frameworks.traced.front import Front


class _Front(Front[tf.Tensor]):
    array_type = "tf.Tensor"
    words: ClassVar = {
        "an array": "a tensor",
        "An array": "A tensor",
        "jax.ShapeDtypeStruct": "tf.TensorSpec",
    }

    def array(self, x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        check_dtype(x.dtype.name)
        return x

    def kind(self, x: Any) -> Kind:
        x = x if hasattr(x, "dtype") and hasattr(x, "shape") else tf.convert_to_tensor(x)
        dtype, shape = tf.as_dtype(x.dtype), tf.TensorShape(x.shape)
        check_dtype(dtype.name)
        if not shape.is_fully_defined():
            raise ValueError(f"a message is received into a tensor of a known shape, not {shape}")
        return tuple(shape.as_list()), dtype

    def run(self, x: tf.Tensor | None, call: Call) -> tf.Tensor:
        return run(x, call)


_front = _Front()
all_reduce = _front.public(_front.all_reduce)
all_gather = _front.public(_front.all_gather)
reduce_scatter = _front.public(_front.reduce_scatter)
all_to_all = _front.public(_front.all_to_all)
broadcast = _front.public(_front.broadcast)
send = _front.public(_front.send)
recv = _front.public(_front.recv)
sendrecv = _front.public(_front.sendrecv)
