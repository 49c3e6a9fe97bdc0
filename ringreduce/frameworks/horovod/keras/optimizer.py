"""DistributedOptimizer: a Keras optimizer that steps with all ranks' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.tensorflow.compression import Compression
from ringreduce.frameworks.horovod.tensorflow.reducing import GradientReducer
from ringreduce.frameworks.horovod.tensorflow.tape import _layers
from ringreduce.frameworks.tensorflow.operations import scaled

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer


class Distributed(keras.optimizers.Optimizer):  # type: ignore[misc]  # mypy does not follow Keras's types
    """The methods of a distributed optimizer. ``DistributedOptimizer`` adds them to the class of an optimizer."""

    _hvd_reducer: GradientReducer
    _hvd_passes: int
    _hvd_averages: bool
    _hvd_sums: list[Any] | None
    _hvd_came: Any

    def register_local_var(self, variable: Any) -> None:
        """Leaves the gradients of a variable out of the exchange."""
        self._hvd_reducer.keep_local([variable])

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Steps with all ranks' gradients; with several passes per step, adds gradients up to then."""
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if self._hvd_passes == 1:
            super().apply(self._hvd_reducer.reduce(grads, variables), variables)
            return
        places = [place for place, gradient in enumerate(grads) if gradient is not None]
        sums = self._collected([grads[place] for place in places], variables)
        self._hvd_came.assign_add(1)
        due = tf.equal(self._hvd_came % self._hvd_passes, 0)

        def step() -> Any:
            scale = 1 / self._hvd_passes if self._hvd_averages else 1.0
            chosen = [variables[place] for place in places]
            reduced = self._hvd_reducer.reduce([scaled(one, scale) for one in sums], chosen)
            super(Distributed, self).apply(reduced, chosen)
            for one in sums:
                one.assign(tf.zeros_like(one))
            return True

        tf.cond(due, step, lambda: False)

    def _collected(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Adds gradients to what came since the last step, and returns the sums."""
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        if self._hvd_sums is None:
            with tf.init_scope():
                self._hvd_sums = [
                    tf.Variable(tf.zeros(one.shape, one.dtype), trainable=False) for one in grads
                ]
                self._hvd_came = tf.Variable(0, trainable=False, dtype=tf.int64)
        for one, gradient in zip(self._hvd_sums, grads, strict=True):
            one.assign_add(tf.convert_to_tensor(gradient))
        return self._hvd_sums


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, use_locking: bool = False, device_dense: str = "",
    device_sparse: str = "", compression: Any = Compression.none, sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1, op: Any = Op.Average, gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
    process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """Returns a Keras optimizer of the same class and state, that steps with all ranks' gradients.

    Models that are compiled with it run without XLA, also if ``jit_compile`` is "auto" or True. If the dtype policy is
    "mixed_float16", a LossScaleOptimizer is put around the optimizer, as Keras would.

    Args:
        optimizer: a ``keras.optimizers.Optimizer``.
        name: the optimizer's new name.
        compression: how gradients travel.
        backward_passes_per_step: the number of calls before each step, whose gradients are added on this rank.
        average_aggregated_gradients: divides these by their number.
        op: Average, Sum or Adasum, which here combines gradients.
        sparse_as_dense, gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients: as for
            :class:`ringreduce.horovod.tensorflow.reducing.GradientReducer`.

    Raises:
        TypeError: optimizer is none of Keras 3.
        ValueError: an argument is invalid, or the optimizer is distributed already.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"optimizer must be an optimizer of Keras 3, not {type(optimizer).__name__}")
    if isinstance(optimizer, Distributed):
        raise ValueError("optimizer is a DistributedOptimizer already")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
    if keras.config.dtype_policy().name == "mixed_float16" and not isinstance(optimizer, LossScaleOptimizer):
        # Keras would put it outside the exchange. Then ranks could disagree whether to step.
        optimizer = LossScaleOptimizer(optimizer)
    base = type(optimizer)
    # The name and the module of the class say what a saved model loads: the optimizer itself.
    made: Any = object.__new__(type(base.__name__, (Distributed, base), {"__module__": base.__module__}))
    made.__dict__.update(optimizer.__dict__)
    settings = {
        "_hvd_reducer": GradientReducer(
            compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
            scale_local_gradients,
        ),
        "_hvd_passes": backward_passes_per_step,
        "_hvd_averages": average_aggregated_gradients,
        "_hvd_sums": None,
        "_hvd_came": None,
    }  # fmt: skip
    made.__dict__.update(settings)  # past the optimizer's own attributes, which Keras tracks
    if name is not None:
        made.name = name
    _keep_from_xla()
    return made


def PartialDistributedOptimizer(optimizer: Any, *options: Any, local_layers: Any = None, **named: Any) -> Any:
    """Returns a distributed optimizer that leaves some layers out.

    Args:
        local_layers: a layer, or a list of layers, whose gradients are not exchanged.
        options, named: as for :func:`DistributedOptimizer`.
    """
    made = DistributedOptimizer(optimizer, *options, **named)
    for layer in _layers(local_layers):
        made._hvd_reducer.keep_local(layer.trainable_weights)
    return made


def _keep_from_xla() -> None:
    """Has Keras compile no model by XLA whose optimizer is distributed.

    Keras asks only layers whether they can be compiled. Where it has changed, compiling says what to do.
    """
    from keras.src.trainers import trainer

    usual = getattr(trainer, "model_supports_jit", None)
    if usual is None or hasattr(usual, "of_ringreduce"):
        return

    def supports(model: Any) -> bool:
        return not isinstance(getattr(model, "optimizer", None), Distributed) and bool(usual(model))

    supports.of_ringreduce = True  # type: ignore[attr-defined]
    trainer.model_supports_jit = supports
