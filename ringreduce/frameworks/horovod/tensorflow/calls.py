"""What each operation runs, and its gradient. The conventions are those of the torch operations.

Gradients of all-gather and broadcast are averaged over the ranks, and that of a reduce-scatter with op=Sum is
multiplied by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from ringreduce.frameworks.horovod import job
from ringreduce.frameworks.horovod.arguments import chosen_splits
from ringreduce.frameworks.horovod.exchanges import AllGather, AllToAll, BroadcastOperation
from ringreduce.frameworks.horovod.kit import Kit
from ringreduce.frameworks.horovod.process_sets import ProcessSet
from ringreduce.frameworks.horovod.reductions import AllReduceOperation, Op, ReduceScatterOperation
from ringreduce.frameworks.horovod.request import Operation
from ringreduce.frameworks.horovod.tensorflow.bridge import BridgedCall, execute
from ringreduce.frameworks.tensorflow.operations import scaled, zeros_after

__all__ = ["AllGatherCall", "AllReduceCall", "AllToAllCall", "BroadcastCall", "ReduceScatterCall", "named"]


def named(call: BridgedCall, tensors: Sequence[Any]) -> BridgedCall:
    """Returns a call that has a name if it is in a graph: there, the order of calls says nothing."""
    if call.name is not None or tf.executing_eagerly():
        return call
    of = getattr(getattr(tensors[0], "op", None), "name", "constant")  # an eager tensor has no op
    return replace(call, name=tf.compat.v1.get_default_graph().unique_name(f"{call.kind}.{of}"))


def shaped(results: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Tells TensorFlow the shapes of a graph's results."""
    if not tf.executing_eagerly():
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)
    return list(results)


def run(call: BridgedCall, tensors: Sequence[Any]) -> list[Any]:
    """Runs a call whose results have the dtypes and shapes of its inputs, but for the numbers of rows of some."""
    results = execute(named(call, tensors), tensors)
    same = isinstance(call, AllReduceCall | BroadcastCall)
    return shaped(results, [tensor.shape if same else _rows(tensor.shape) for tensor in tensors])


def _rows(shape: Any) -> Any:
    return shape if shape.rank is None else tf.TensorShape([None, *shape.as_list()[1:]])


def averaged(tensors: Sequence[Any], process_set: ProcessSet) -> list[Any]:
    return run(AllReduceCall(None, process_set), tensors)


@dataclass(frozen=True)
class ReductionCall(BridgedCall):
    op: Op = Op.Average
    before: float = 1.0
    after: float = 1.0


class AllReduceCall(ReductionCall):
    kind = "allreduce"

    def operation(self, kit: Kit, inputs: list[Any]) -> Operation:
        outputs = [kit.empty(x.shape, x) for x in inputs]
        return AllReduceOperation(kit, inputs, outputs, self.op, self.before, self.after, outputs)

    def gradients(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        return run(replace(self, name=None), gradients)


class ReduceScatterCall(ReductionCall):
    kind = "reducescatter"

    def operation(self, kit: Kit, inputs: list[Any]) -> Operation:
        if not all(x.shape for x in inputs):
            raise ValueError("reducescatter needs tensors with at least one axis")
        return ReduceScatterOperation(kit, inputs, self.op, self.before, self.after, True)

    def gradients(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        scale = self.before * self.after * (self.process_set.size() if self.op is Op.Sum else 1)
        return run(AllGatherCall(None, self.process_set), [scaled(gradient, scale) for gradient in gradients])


@dataclass(frozen=True)
class AllGatherCall(BridgedCall):
    kind = "allgather"

    def operation(self, kit: Kit, inputs: list[Any]) -> Operation:
        return AllGather(kit, inputs, True)

    def gradients(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        averages = averaged(gradients, self.process_set)
        own = tf.stack([tf.shape(x, tf.int64)[0] if x.shape.rank else tf.ones((), tf.int64) for x in inputs])
        (rows,) = run(AllGatherCall(None, self.process_set), [own[None]])
        starts = tf.reduce_sum(rows[: self.process_set.rank()], 0)
        parts = [average[starts[n] : starts[n] + own[n]] for n, average in enumerate(averages)]
        return [tf.reshape(part, tf.shape(x)) for part, x in zip(parts, inputs, strict=True)]


@dataclass(frozen=True)
class BroadcastCall(BridgedCall):
    root: int = 0
    place: int = 0
    kind = "broadcast"

    def operation(self, kit: Kit, inputs: list[Any]) -> Operation:
        (x,) = inputs
        copy = kit.empty(x.shape, x)
        if self.process_set.rank() == self.place:
            kit.copy([copy], [x])
        return BroadcastOperation(kit, copy, self.root, self.place, copy)

    def gradients(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        (average,) = averaged(gradients, self.process_set)
        return [average if job.rank() == self.root else zeros_after(average)]


@dataclass(frozen=True)
class AllToAllCall(BridgedCall):
    """The inputs are the rows, and the number of them for each rank, which may be empty: equal numbers."""

    kind = "alltoall"

    def operation(self, kit: Kit, inputs: list[Any]) -> Operation:
        x, splits = inputs
        counts = chosen_splits(x.shape, splits.tolist() if splits.size else None, self.process_set.size())
        return AllToAll(kit, x, counts)

    def gradients(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        x = inputs[0]
        back, _ = exchanged(replace(self, name=None), gradients[0], outputs[1])
        left_out = tf.shape(x)[0] - tf.shape(back)[0]
        rest = tf.zeros(tf.concat([left_out[None], tf.shape(x)[1:]], 0), back.dtype)
        return [tf.concat([back, rest], 0), None]


def exchanged(call: AllToAllCall, x: Any, splits: Any) -> list[Any]:
    """Returns the received rows, and the number of them from each rank, int32 [ranks]."""
    results = execute(named(call, [x]), [x, splits], [x.dtype, tf.int32])
    return shaped(results, [_rows(x.shape), [call.process_set.size()]])
