"""Horovod's operations on TensorFlow tensors, eager and inside tf.function.

Common arguments:

- ``tensor``: a tensor on the CPU, of any dtype that :class:`ringreduce.Communicator` supports.
- ``name``: which calls of the ranks belong together. Ranks may submit names in any order. Eager calls without a name
  belong together in the order in which each rank makes them, for each function and process set; those of a graph by
  the place of their tensors in the graph.
- ``op``: Average (the default), Sum, Min, Max, Product or Adasum. ``average`` is its older form: True or False.
- ``prescale_factor``, ``postscale_factor``: what values are multiplied by, before and after the reduction.
- ``process_set``: the ranks that take part.
- ``device_dense``, ``device_sparse``, ``ignore_name_scope``: accepted, and not needed.

Eager calls raise ValueError or TypeError for invalid arguments, and HorovodInternalError if the ranks' calls of a name
differ or a rank is lost. In a tf.function, these come out as tf.errors.InvalidArgumentError and
tf.errors.AbortedError. All results are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringreduce.frameworks.horovod import job
from ringreduce.frameworks.horovod.arguments import EVERYONE, chosen_op
from ringreduce.frameworks.horovod.process_sets import ProcessSet
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.tensorflow import calls
from ringreduce.frameworks.horovod.tensorflow.calls import (
    AllGatherCall,
    AllReduceCall,
    AllToAllCall,
    BroadcastCall,
    ReduceScatterCall,
)
from ringreduce.frameworks.horovod.tensorflow.compression import Compression
from ringreduce.frameworks.tensorflow.operations import divided
from ringreduce.frameworks.traced.call import check_dtype

__all__ = [
    "allgather", "allreduce", "alltoall", "broadcast", "broadcast_", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "reducescatter",
    "size_op",
]  # fmt: skip


def _tensor(x: Any) -> Any:
    x = tf.convert_to_tensor(x)
    check_dtype(x.dtype.name)
    return x


def _tensors(tensors: Any) -> list[Any]:
    if tf.is_tensor(tensors) or isinstance(tensors, np.ndarray) or not len(tensors):
        raise ValueError("tensors must be a list of at least one tensor")
    return [_tensor(tensor) for tensor in tensors]


# --- reductions --------------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    name: str | None = None, process_set: ProcessSet = EVERYONE, ignore_name_scope: bool = False,
) -> Any:  # fmt: skip
    """Combines the ranks' tensors element by element.

    Args:
        tensor: a tensor, or tf.IndexedSlices, whose slices are gathered and averaged, with op Average or Sum.
        compression: how values travel: Compression.none, Compression.fp16, or another Compressor.

    Returns:
        A tensor of the same shape and dtype, with the same bits on all ranks; or tf.IndexedSlices.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse_allreduce(tensor, chosen_op(op, average, process_set), name, process_set)
    how = compression, op, prescale_factor, postscale_factor, process_set
    return grouped_allreduce([tensor], average, device_dense, device_sparse, *how, False, name)[0]


def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = EVERYONE, ignore_name_scope: bool = False, name: str | None = None,
) -> list[Any]:  # fmt: skip
    """Does what :func:`allreduce` does, with each of several tensors, which are negotiated as one. Returns a list."""
    call = AllReduceCall(
        name,
        process_set,
        chosen_op(op, average, process_set),
        float(prescale_factor),
        float(postscale_factor),
    )
    return _compressed(compression, lambda sent: calls.run(call, sent), tensors)


def _compressed(compression: Any, run: Callable[[list[Any]], list[Any]], tensors: Sequence[Any]) -> list[Any]:
    pairs = [compression.compress(tensor) for tensor in _tensors(tensors)]
    found = run([tensor for tensor, _ in pairs])
    return [compression.decompress(one, context) for one, (_, context) in zip(found, pairs, strict=True)]


def _sparse_allreduce(slices: Any, op: Op, name: str | None, process_set: ProcessSet) -> Any:
    if op not in (Op.Average, Op.Sum):
        raise ValueError(f"op of tf.IndexedSlices must be Average or Sum, not {op.name}")
    values, indices = grouped_allgather([slices.values, slices.indices], name, process_set=process_set)
    if op is Op.Average:
        values = divided(values, process_set.size())
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def reducescatter(
    tensor: Any, device_dense: str = "", compression: Any = Compression.none, op: Any = Op.Average,
    name: str | None = None, process_set: ProcessSet = EVERYONE, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:  # fmt: skip
    """Combines the ranks' tensors, and gives each rank a block of rows: the r-th of the process set the r-th block.

    If the rows do not divide evenly, the first blocks have one row more.
    """
    how = process_set, prescale_factor, postscale_factor, name
    return grouped_reducescatter([tensor], device_dense, compression, op, *how)[0]


def grouped_reducescatter(
    tensors: Sequence[Any], device_dense: str = "", compression: Any = Compression.none, op: Any = Op.Average,
    process_set: ProcessSet = EVERYONE, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:  # fmt: skip
    """Does what :func:`reducescatter` does, with each of several tensors. Returns a list."""
    op = chosen_op(op, None, process_set)
    if op is Op.Adasum:
        raise NotImplementedError("reducescatter needs another op than Adasum")
    call = ReduceScatterCall(name, process_set, op, float(prescale_factor), float(postscale_factor))
    return _compressed(compression, lambda sent: calls.run(call, sent), tensors)


# --- moves -------------------------------------------------------------------------------------------------------


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = EVERYONE
) -> Any:
    """Concatenates the ranks' tensors along the first axis, in rank order. Their numbers of rows may differ."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = EVERYONE,
) -> list[Any]:  # fmt: skip
    """Does what :func:`allgather` does, with each of several tensors. Returns a list."""
    return calls.run(AllGatherCall(name, process_set), _tensors(tensors))


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = EVERYONE,
) -> Any:  # fmt: skip
    """Returns a copy of the tensor of the rank root_rank (of the job)."""
    place = process_set.place_of(root_rank, "root_rank")
    return calls.run(BroadcastCall(name, process_set, root_rank, place), [_tensor(tensor)])[0]


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> list[Any]:
    """Copies the variables of the rank root_rank (of the job) to every rank's variables, and returns these."""
    found = []
    for number, variable in enumerate(variables):
        own = None if name is None else f"{name}.{number}"
        found.append(broadcast(variable, root_rank, own, process_set=process_set))
    for variable, value in zip(variables, found, strict=True):
        variable.assign(value)
    return list(variables)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = EVERYONE,
) -> Any:  # fmt: skip
    """Sends a block of rows of the tensor to each rank.

    Args:
        splits: the number of rows for each rank of the process set. None means equal blocks.

    Returns:
        The received rows, in rank order. If splits are given, also the number of rows from each rank, int32 [ranks].
    """
    counts = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    if not counts.dtype.is_integer:
        raise ValueError(f"splits must be integers, not {counts.dtype.name}")
    counts = tf.cast(counts, tf.int32)
    rows, received = calls.exchanged(AllToAllCall(name, process_set), _tensor(tensor), counts)
    return rows if splits is None else (rows, received)


# --- the job, when a graph runs ----------------------------------------------------------------------------------


def _when_run(value: Callable[[], int], name: str | None) -> Any:
    result = tf.numpy_function(lambda: np.int32(value()), [], tf.int32, name=name)
    result.set_shape([])
    return result


def _set_of(number: int) -> ProcessSet:
    sets = job.job().sets
    if number not in sets:
        raise ValueError(f"there is no process set {number}")
    return sets[number]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks of a process set, when the graph runs."""
    return _when_run(lambda: _set_of(process_set_id).size(), name)


def rank_op(name: str | None = None) -> Any:
    """Returns the rank, when the graph runs."""
    return _when_run(job.rank, name)


def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host, when the graph runs."""
    return _when_run(job.local_size, name)


def local_rank_op(name: str | None = None) -> Any:
    """Returns this rank's number on its host, when the graph runs."""
    return _when_run(job.local_rank, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this rank belongs to a process set, or 0, when the graph runs."""
    return _when_run(lambda: int(_set_of(process_set_id).included()), name)
