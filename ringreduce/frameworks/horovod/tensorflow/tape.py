"""DistributedGradientTape: a tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.tensorflow.compression import Compression
from ringreduce.frameworks.horovod.tensorflow.reducing import GradientReducer

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]  # mypy does not follow TensorFlow's types
    _reducer: GradientReducer

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """Does what tf.GradientTape.gradient does, with the gradients of all ranks."""
        found = super().gradient(target, sources, output_gradients, **options)
        flat = self._reducer.reduce(_leaves(found), _leaves(sources))
        return tf.nest.pack_sequence_as(sources, flat)

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradients of a variable out of the exchange."""
        self._reducer.keep_local([source])


def _leaves(structure: Any) -> list[Any]:
    return list(tf.nest.flatten(structure))


def DistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
    sparse_as_dense: bool = False, op: Any = Op.Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
    groups: Any = None, process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """Returns a tape with what another one has recorded, whose ``gradient`` averages over the ranks.

    Args:
        compression: how gradients travel.
        op: Average, Sum or Adasum.
        sparse_as_dense, gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients: as for
            :class:`ringreduce.horovod.tensorflow.reducing.GradientReducer`.

    Raises:
        ValueError: an argument is invalid.
    """
    made: Any = object.__new__(_DistributedTape)
    made.__dict__.update(gradtape.__dict__)
    made._reducer = GradientReducer(
        compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
        scale_local_gradients,
    )  # fmt: skip
    return made


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, *options: Any, local_layers: Any = None, **named: Any
) -> Any:
    """Returns a distributed tape that leaves some layers out.

    Args:
        local_layers: a layer, or a list of layers, whose gradients are not exchanged.
        options, named: as for :func:`DistributedGradientTape`.
    """
    made = DistributedGradientTape(gradtape, *options, **named)
    for layer in _layers(local_layers):
        made._reducer.keep_local(layer.trainable_weights)
    return made


def _layers(layers: Any) -> list[Any]:
    if layers is None:
        return []
    return list(layers) if isinstance(layers, list | tuple | set) else [layers]
