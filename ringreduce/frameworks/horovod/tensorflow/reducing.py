"""The exchange of gradients, for tapes and optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ringreduce.frameworks.horovod.arguments import chosen_groups, scaled_op
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.tensorflow.compression import Compression
from ringreduce.frameworks.horovod.tensorflow.operations import allreduce, grouped_allreduce
from ringreduce.frameworks.tensorflow.operations import divided

__all__ = ["GradientReducer"]


class GradientReducer:
    """Averages or adds the ranks' gradients.

    Args:
        sparse_as_dense: makes tf.IndexedSlices dense before they are exchanged.
        gradient_predivide_factor: for op=Average, divides gradients by this before they are added, and by the number
            of ranks over this afterwards.
        num_groups: the number of groups into which gradients are divided, each of which travels as one. 0: one group.
        groups: lists of variables, each of which travels as one; other variables travel as one. Or num_groups.
        scale_local_gradients: whether gradients of local variables, which are not exchanged, are divided by the number
            of ranks, so that they have the size of averages.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(
        self, compression: Any = Compression.none, sparse_as_dense: bool = False, op: Any = Op.Average,
        gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
        process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
    ) -> None:  # fmt: skip
        groups, num_groups = chosen_groups(groups, num_groups, object, "variables")
        self._compression, self._dense, self._set = compression, sparse_as_dense, process_set
        self._groups = groups or []
        self._count = max(num_groups, 1)
        self._op, self._scale = Op(op), scaled_op(op, gradient_predivide_factor, process_set)
        self._scale_local = scale_local_gradients
        self._local: set[int] = set()

    def keep_local(self, variables: Iterable[Any]) -> None:
        """Leaves the gradients of variables out of the exchange."""
        self._local |= {_identity(variable) for variable in variables}

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns all ranks' gradients. None stays None, which must be so on all ranks alike.

        A rank that does not belong to the process set keeps its own.
        """
        found = list(gradients)
        if not self._set.included():
            return found
        dense: list[int] = []
        for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices) and self._dense:
                found[place] = gradient = tf.convert_to_tensor(gradient)
            if _identity(variable) in self._local:
                found[place] = divided(gradient, self._set.size()) if self._scale_local else gradient
            elif isinstance(gradient, tf.IndexedSlices):
                found[place] = allreduce(gradient, op=self._op, process_set=self._set)
            else:
                dense.append(place)
        for places in self._parts(dense, variables):
            own = [found[place] for place in places]
            how = {"compression": self._compression, "process_set": self._set, **self._scale}
            reduced = grouped_allreduce(own, **how)
            for place, gradient in zip(places, reduced, strict=True):
                found[place] = gradient
        return found

    def _parts(self, places: Sequence[int], variables: Sequence[Any]) -> list[list[int]]:
        """Returns lists of places of gradients, each of which travels as one."""
        grouped = []
        left = list(places)
        for group in self._groups:
            own = {_identity(variable) for variable in group}
            grouped.append([place for place in left if _identity(variables[place]) in own])
            left = [place for place in left if _identity(variables[place]) not in own]
        each = -(-len(left) // self._count) or 1
        grouped += [left[begin : begin + each] for begin in range(0, len(left), each)]
        return [part for part in grouped if part]


def _identity(variable: Any) -> int:
    """Returns a number that a variable of TensorFlow's has in common with Keras's around it."""
    return id(getattr(variable, "value", variable) if hasattr(variable, "path") else variable)
