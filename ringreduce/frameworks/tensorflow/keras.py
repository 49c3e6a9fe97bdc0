"""Data parallelism for Keras models: ``fit`` and ``evaluate`` on all ranks.

>>> import keras, ringreduce, ringreduce.tensorflow.keras as rk
>>> comm = ringreduce.init()
>>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
>>> model.compile("adam", "mse")
>>> rk.data_parallel(model).fit(x, y, batch_size=64)  # 64 samples on all ranks together
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

try:
    import keras
except ImportError as _error:
    raise ImportError(
        "ringreduce.tensorflow.keras needs keras 3, and there is none: pip install keras"
    ) from _error

from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.frameworks.tensorflow import library
from ringreduce.frameworks.tensorflow.calls import all_reduce, broadcast
from ringreduce.frameworks.tensorflow.operations import scaled

__all__ = ["data_parallel"]


def check() -> None:
    """Raises RuntimeError if Keras does not run on TensorFlow, or is too old."""
    library.check()
    if not keras.__version__.startswith("3."):
        raise RuntimeError(
            f"ringreduce.tensorflow.keras needs keras 3; this is keras {keras.__version__}: pip install -U keras"
        )
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow before the first import of keras"
        )


def data_parallel(model: Any, *, comm: Communicator | None = None, split: bool = True) -> Any:
    """Has a Keras model train and evaluate on all ranks. Every rank calls it, with the same model.

    Every rank has the whole model, with the same values: rank 0's, from this call on. ``fit`` computes the gradient of
    a global batch, which the ranks divide among themselves, so that losses and weights are those of one process with
    that batch. BatchNormalization normalises each rank's samples by themselves, and averages its moving statistics.
    Losses and metrics are those of the global batches, on every rank. ``predict`` is left alone, and so is
    ``model.save``.

    Args:
        model: a ``keras.Model`` that is built and compiled. XLA cannot compile its steps further on, so ``jit_compile``
            becomes False.
        comm: the ranks. None takes :func:`ringreduce.world`.
        split: whether every rank passes the same data to ``fit`` and ``evaluate``, in global batches, of which it gets
            its rows. The calls set TensorFlow's seed alike on all ranks, so that shuffling gives the same order. False:
            every rank passes data of its own, and the same number of batches.

    Returns:
        The model.

    Raises:
        ValueError: the model is not built, or not compiled.
        RuntimeError: Keras does not run on TensorFlow, or a version is too old.
        TypeError: model is not a keras.Model, or comm is not a communicator.
    """
    check()
    on = chosen(comm)
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model, not {type(model).__name__}")
    if not model.built:
        raise ValueError(
            "build the model first: begin it with keras.Input(shape), or call model.build(shape)"
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError("compile the model first, with an optimizer: model.compile(optimizer, loss)")
    for variable in unshared(model.variables + model.optimizer.variables):
        variable.assign(broadcast(variable.value, comm=on))
    if split:
        tf.random.set_seed(on.broadcast_object(random.randrange(1 << 31)))
    model.jit_compile = False
    model.train_function = model.test_function = None  # made before, they would not call these steps
    _Parallel(model, on, split).take_over()
    return model


def unshared(variables: Sequence[Any]) -> list[Any]:
    """Returns the variables that ranks have in common: all but the states of random numbers, which may differ."""
    return [one for one in variables if "seed_generator" not in one.path]


class _Parallel:
    """What a model and its optimizer do differently on several ranks."""

    def __init__(self, model: Any, comm: Communicator, split: bool) -> None:
        self._model, self._comm, self._split = model, comm, split
        self._weight: Any = 1.0  # of this rank's mean in that of the global batch

    def take_over(self) -> None:
        """Puts methods of this object before those of the model and of its optimizer."""
        model, optimizer = self._model, self._model.optimizer
        train, test, result = model.train_step, model.test_step, model.get_metrics_result
        scale, apply = optimizer.scale_loss, optimizer.apply
        model.train_step = lambda data: self._train_step(train, data)
        model.test_step = lambda data: test(self._own(data))
        model.get_metrics_result = lambda: self._metrics(result)
        optimizer.scale_loss = lambda loss: scale(scaled(loss, self._weight))
        optimizer.apply = lambda gradients, *rest, **named: apply(self._averages(gradients), *rest, **named)

    def _train_step(self, step: Callable[[Any], Any], data: Any) -> Any:
        logs = step(self._own(data))
        layers = self._model._flatten_layers()
        norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        moving = [one for norm in norms for one in (norm.moving_mean, norm.moving_variance)]
        for one, average in zip(
            moving, packed([one.value for one in moving], "avg", self._comm), strict=True
        ):
            one.assign(average)
        return logs

    def _own(self, data: Any) -> Any:
        """Returns this rank's rows of a batch. Sets the weight of their mean."""
        rank, size = self._comm.rank, self._comm.size
        count = tf.shape(next(one for one in tf.nest.flatten(data) if one is not None))[0]
        if not self._split:
            total = all_reduce(count, comm=self._comm)
            self._weight = count * size / total
            return data
        begin, end = rank * count // size, (rank + 1) * count // size
        self._weight = (end - begin) * size / count
        return tf.nest.map_structure(lambda one: None if one is None else one[begin:end], data)

    def _averages(self, gradients: Sequence[Any]) -> list[Any]:
        """Averages gradients. The last layer's come first, because the backward pass has these first."""
        found = [
            None if one is None else all_reduce(one, "avg", comm=self._comm)
            for one in reversed(list(gradients))
        ]
        return found[::-1]

    def _metrics(self, result: Callable[[], Any]) -> Any:
        """Returns the metrics of what all ranks have seen. Each rank still counts only its own samples."""
        added = [
            one for metric in self._model.metrics for one in metric.variables if one.aggregation == "sum"
        ]
        sums = packed([one.value for one in added], "sum", self._comm)
        with keras.StatelessScope(state_mapping=list(zip(added, sums, strict=True))):
            return result()


def packed(tensors: Sequence[Any], op: Any, comm: Communicator) -> list[Any]:
    """All-reduces small tensors, with one call for each dtype."""
    found: dict[int, Any] = {}
    for dtype in dict.fromkeys(one.dtype for one in tensors):
        places = [place for place, one in enumerate(tensors) if one.dtype == dtype]
        flat = all_reduce(tf.concat([tf.reshape(tensors[place], [-1]) for place in places], 0), op, comm=comm)
        parts = tf.split(flat, [tensors[place].shape.num_elements() for place in places])
        found |= {p: tf.reshape(part, tensors[p].shape) for p, part in zip(places, parts, strict=True)}
    return [found[place] for place in range(len(tensors))]
