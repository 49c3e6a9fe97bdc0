"""All-reduce, sparse all-reduce and reduce-scatter. operations.py describes what the functions have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ringreduce.communicator.arrays import arrays
from ringreduce.frameworks.horovod.arguments import EVERYONE, Tensors, chosen_op, submit
from ringreduce.frameworks.horovod.process_sets import ProcessSet
from ringreduce.frameworks.horovod.reductions import (
    AllReduceOperation,
    Op,
    ReduceScatterOperation,
    all_reduce_of_zeros,
)
from ringreduce.frameworks.horovod.request import Request, stand_ins
from ringreduce.frameworks.horovod.torch import gradients
from ringreduce.frameworks.horovod.torch.arguments import plain, plain_list
from ringreduce.frameworks.horovod.torch.compression import Compression
from ringreduce.frameworks.horovod.torch.kit import KIT
from ringreduce.frameworks.horovod.torch.moving import grouped_allgather
from ringreduce.frameworks.horovod.torch.sparse import SparseAllReduce

stand_ins[torch.dtype] = partial(all_reduce_of_zeros, KIT)

__all__ = [
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "reducescatter", "reducescatter_async", "sparse_allreduce_async",
]  # fmt: skip

COPIED = 4 << 10  # bytes up to which a copy is cheaper than a second tensor for the engine


# --- all-reduce --------------------------------------------------------------------------------------------------


def _allreduce(
    tensors: Tensors, result: Any, in_place: bool, blocking: bool, average: bool | None, name: str | None, op: Any,
    prescale_factor: float, postscale_factor: float, process_set: ProcessSet,
) -> Request:  # fmt: skip
    """Submits an all-reduce of plain tensors. result: what it returns; None for new tensors."""
    op = chosen_op(op, average, process_set)
    outputs = tensors
    if in_place:
        for tensor in tensors:
            arrays.check_writable(tensor, "tensor")
    else:
        if len(tensors) == 1 and tensors[0].nbytes <= COPIED:
            tensors = outputs = [tensors[0].clone()]
        else:
            outputs = [torch.empty_like(tensor) for tensor in tensors]
        result = outputs[0] if result is None else outputs
    operation = AllReduceOperation(KIT, tensors, outputs, op, prescale_factor, postscale_factor, result)
    return submit(operation, name, process_set, blocking)


def allreduce_async(
    tensor: Any, average: bool | None = None, name: str | None = None, op: Any = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Request:  # fmt: skip
    """Combines the ranks' tensors element by element. Returns a handle."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce([plain(tensor)], None, False, False, *how)


def allreduce_async_(
    tensor: Any, average: bool | None = None, name: str | None = None, op: Any = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Request:  # fmt: skip
    """Does what :func:`allreduce_async` does, in place."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce([plain(tensor)], tensor, True, False, *how)


def allreduce(
    tensor: Any, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Any:  # fmt: skip
    """Combines the ranks' tensors element by element.

    Args:
        compression: how values travel: Compression.none, Compression.fp16, or another Compressor.

    Returns:
        A new tensor of the same shape and dtype, with the same bits on all ranks.
    """

    how = average, name, op, prescale_factor, postscale_factor, process_set
    if compression is not Compression.none:
        compressed, context = compression.compress(tensor)
        return compression.decompress(
            allreduce(compressed, average, name, Compression.none, *how[2:]), context
        )
    if not (isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()):
        return _allreduce([plain(tensor)], None, False, True, *how).wait()

    def run(x: Any) -> Any:
        return _allreduce([plain(x)], None, False, True, *how).wait()

    def backward(gradient: Any) -> Any:
        return allreduce(gradient, average, None, Compression.none, *how[2:])

    return gradients.run(run, backward, tensor)


def allreduce_(
    tensor: Any, average: bool | None = None, name: str | None = None, op: Any = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Any:  # fmt: skip
    """Combines the ranks' tensors element by element, in place. Returns the tensor."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce([plain(tensor)], tensor, True, True, *how).wait()


def grouped_allreduce_async(
    tensors: Tensors, average: bool | None = None, name: str | None = None, op: Any = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Request:  # fmt: skip
    """Combines each of several tensors with those of the other ranks. Returns a handle."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce(plain_list(tensors), tensors, False, False, *how)


def grouped_allreduce_async_(
    tensors: Tensors, average: bool | None = None, name: str | None = None, op: Any = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Request:  # fmt: skip
    """Does what :func:`grouped_allreduce_async` does, in place."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce(plain_list(tensors), tensors, True, False, *how)


def grouped_allreduce(
    tensors: Tensors, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> list[Any]:  # fmt: skip
    """Combines each of several tensors with those of the other ranks.

    Returns:
        A list of new tensors.
    """

    def run(*parts: Any) -> Any:
        how = average, name, op, prescale_factor, postscale_factor, process_set
        return _allreduce(plain_list(parts), parts, False, True, *how).wait()

    def backward(*parts: Any) -> Any:
        none = Compression.none
        return grouped_allreduce(
            parts, average, None, none, op, prescale_factor, postscale_factor, process_set
        )

    compressed, contexts = zip(*[compression.compress(tensor) for tensor in tensors], strict=True)
    found = gradients.run(run, backward, *compressed)
    return [compression.decompress(one, context) for one, context in zip(found, contexts, strict=True)]


def grouped_allreduce_(
    tensors: Tensors, average: bool | None = None, name: str | None = None, op: Any = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = EVERYONE,
) -> Any:  # fmt: skip
    """Combines each of several tensors with those of the other ranks, in place. Returns the list."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce(plain_list(tensors), tensors, True, True, *how).wait()


def sparse_allreduce_async(
    tensor: Any, name: str | None = None, op: Any = None, process_set: ProcessSet = EVERYONE
) -> Request:
    """Adds or averages the ranks' sparse COO tensors. Returns a handle; its result is a sparse tensor.

    Raises:
        ValueError: the tensor is not sparse COO in CPU memory, or op is neither Sum nor Average.
    """
    op = chosen_op(op, None, process_set)
    if op not in (Op.Sum, Op.Average):
        raise ValueError(f"op of a sparse all-reduce must be Sum or Average, not {op.name}")
    if tensor.layout is not torch.sparse_coo or not tensor.is_cpu:
        raise ValueError(f"tensor must be sparse COO in CPU memory, not {tensor.layout} on {tensor.device}")
    return submit(SparseAllReduce(tensor.detach(), op is Op.Average), name, process_set, False)


# --- reduce-scatter ----------------------------------------------------------------------------------------------


def _reducescatter(
    tensors: Sequence[Any], grouped: bool, blocking: bool, name: str | None, op: Any, process_set: ProcessSet,
    prescale_factor: float, postscale_factor: float,
) -> Request:  # fmt: skip
    op = chosen_op(op, None, process_set)
    if op is Op.Adasum:
        raise NotImplementedError("reducescatter needs another op than Adasum")
    if not all(tensor.dim() for tensor in tensors):
        raise ValueError("reducescatter needs tensors with at least one axis")
    operation = ReduceScatterOperation(KIT, tensors, op, prescale_factor, postscale_factor, grouped)
    return submit(operation, name, process_set, blocking)


def reducescatter_async(
    tensor: Any, name: str | None = None, op: Any = Op.Average, process_set: ProcessSet = EVERYONE,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Request:  # fmt: skip
    """Combines the ranks' tensors, and gives each rank a block of rows. Returns a handle."""
    how = name, op, process_set, prescale_factor, postscale_factor
    return _reducescatter([plain(tensor)], False, False, *how)


def grouped_reducescatter_async(
    tensors: Tensors, name: str | None = None, op: Any = Op.Average, process_set: ProcessSet = EVERYONE,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Request:  # fmt: skip
    """Does what :func:`reducescatter_async` does, with each of several tensors. Returns a handle."""
    how = name, op, process_set, prescale_factor, postscale_factor
    return _reducescatter(plain_list(tensors), True, False, *how)


def reducescatter(
    tensor: Any, name: str | None = None, compression: Any = Compression.none, op: Any = Op.Average,
    process_set: ProcessSet = EVERYONE, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Any:  # fmt: skip
    """Combines the ranks' tensors, and gives each rank a block of rows: the r-th of the process set the r-th block.

    If the rows do not divide evenly, the first blocks have one row more.
    """
    scales = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *scales)[0]


def grouped_reducescatter(
    tensors: Tensors, name: str | None = None, compression: Any = Compression.none, op: Any = Op.Average,
    process_set: ProcessSet = EVERYONE, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Any]:  # fmt: skip
    """Does what :func:`reducescatter` does, with each of several tensors. Returns a list."""

    def run(*parts: Any) -> Any:
        how = name, op, process_set, prescale_factor, postscale_factor
        return _reducescatter(plain_list(parts), True, True, *how).wait()

    def backward(*parts: Any) -> Any:
        scale = prescale_factor * postscale_factor * (process_set.size() if Op(op) is Op.Sum else 1)
        return grouped_allgather([part * scale for part in parts], None, process_set)

    compressed, contexts = zip(*[compression.compress(tensor) for tensor in tensors], strict=True)
    found = gradients.run(run, backward, *compressed)
    return [compression.decompress(one, context) for one, context in zip(found, contexts, strict=True)]
