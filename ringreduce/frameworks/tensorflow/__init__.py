"""Collectives and messages for TensorFlow tensors on the CPU, eager and inside ``tf.function``.

>>> import tensorflow as tf, ringreduce, ringreduce.tensorflow as rt
>>> comm = ringreduce.init()
>>> step = tf.function(lambda gradient: rt.all_reduce(gradient, "avg"))

Every function takes ``comm``, a :class:`ringreduce.Communicator`; None takes :func:`ringreduce.world`. In a
``tf.function``, it is part of the graph, which does not keep it alive: hold it for as long as programs call it. Calls
run in the order in which the program makes them, whether or not values depend on each other, so all ranks run them in
the same order if they run the same program.
:mod:`ringreduce.tensorflow.keras` trains Keras models.

- Tensors are on the CPU. Their dtype is one that :class:`ringreduce.Communicator` lists, and TensorFlow has.
- Gradients are those of the sum of all ranks' results: that of an all_gather is a reduce_scatter, that of a sum is a
  sum. "min", "max", "prod" and the bitwise ops have none, nor do :func:`send` and :func:`recv`.
- XLA cannot compile the calls: ``tf.function(jit_compile=True)`` raises ValueError.

Invalid arguments raise ValueError or TypeError where the call is made, or is traced. If ranks disagree, or one dies,
every rank gets a ``tf.errors.OpError`` that names the rank and the reason. After it, only calls on a new communicator
run, such as the one that :meth:`ringreduce.Communicator.shrink` returns.
"""

from ringreduce.requirement import unmet as _unmet

try:
    import tensorflow as _tensorflow  # noqa: F401
except ImportError as _error:
    raise _unmet("ringreduce.tensorflow", "tensorflow", "2.16", _error, "ringreduce[tensorflow]") from None

from ringreduce.frameworks.tensorflow.calls import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    recv,
    reduce_scatter,
    send,
    sendrecv,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "recv",
    "reduce_scatter",
    "send",
    "sendrecv",
]
