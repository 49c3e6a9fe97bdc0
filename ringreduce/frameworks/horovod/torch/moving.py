"""All-gather, broadcast and all-to-all. operations.py describes what the functions have in common."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.communicator.arrays import arrays
from ringreduce.frameworks.horovod import job
from ringreduce.frameworks.horovod.arguments import EVERYONE, Tensors, chosen_splits, submit
from ringreduce.frameworks.horovod.exchanges import AllGather, AllToAll, BroadcastOperation
from ringreduce.frameworks.horovod.process_sets import ProcessSet
from ringreduce.frameworks.horovod.reductions import AllReduceOperation, Op
from ringreduce.frameworks.horovod.request import Request
from ringreduce.frameworks.horovod.torch import gradients
from ringreduce.frameworks.horovod.torch.arguments import plain, plain_list
from ringreduce.frameworks.horovod.torch.kit import KIT

__all__ = [
    "allgather", "allgather_async", "alltoall", "alltoall_async", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "grouped_allgather", "grouped_allgather_async",
]  # fmt: skip


def averaged(tensors: Tensors, process_set: ProcessSet) -> list[Any]:
    """Returns the averages of the ranks' gradients."""
    outputs = [torch.empty_like(tensor) for tensor in tensors]
    operation = AllReduceOperation(KIT, tensors, outputs, Op.Average, 1.0, 1.0, outputs)
    found: list[Any] = submit(operation, None, process_set, True).wait()
    return found


# --- all-gather --------------------------------------------------------------------------------------------------


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = EVERYONE) -> Request:
    """Concatenates the ranks' tensors along the first axis, whose length may differ. Returns a handle."""
    return submit(AllGather(KIT, [plain(tensor)], False), name, process_set, False)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Request:
    """Does what :func:`allgather_async` does, with each of several tensors. Returns a handle."""
    return submit(AllGather(KIT, plain_list(tensors), True), name, process_set, False)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = EVERYONE) -> Any:
    """Concatenates the ranks' tensors along the first axis, in rank order. Their numbers of rows may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> list[Any]:
    """Does what :func:`allgather` does, with each of several tensors. Returns a list."""

    def run(*parts: Any) -> Any:
        return submit(AllGather(KIT, plain_list(parts), True), name, process_set, True).wait()

    def backward(*parts: Any) -> Any:
        averages = averaged(parts, process_set)
        rows = allgather(torch.tensor([[len(tensor) for tensor in tensors]]), process_set=process_set)
        place = process_set.rank()
        starts, own = rows[:place].sum(0).tolist(), rows[place].tolist()
        return [average[s : s + n] for average, s, n in zip(averages, starts, own, strict=True)]

    return list(gradients.run(run, backward, *tensors))


# --- broadcast ---------------------------------------------------------------------------------------------------


def _broadcast(
    tensor: Any, result: Any, blocking: bool, root_rank: int, name: str | None, process_set: ProcessSet
) -> Request:
    arrays.check_writable(tensor, "tensor")
    place = process_set.place_of(root_rank, "root_rank")
    return submit(BroadcastOperation(KIT, tensor, root_rank, place, result), name, process_set, blocking)


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Request:
    """Copies the tensor of the rank root_rank (of the job) to a new tensor on every rank. Returns a handle."""
    copy = plain(tensor).clone()
    return _broadcast(copy, copy, False, root_rank, name, process_set)


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Request:
    """Copies the tensor of the rank root_rank (of the job) to every rank's tensor. Returns a handle."""
    return _broadcast(plain(tensor), tensor, False, root_rank, name, process_set)


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Any:
    """Returns a copy of the tensor of the rank root_rank (of the job)."""

    def run(x: Any) -> Any:
        copy = plain(x).clone()
        return _broadcast(copy, copy, True, root_rank, name, process_set).wait()

    def backward(gradient: Any) -> Any:
        (average,) = averaged([gradient], process_set)
        return average if job.rank() == root_rank else torch.zeros_like(average)

    return gradients.run(run, backward, tensor)


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Any:
    """Copies the tensor of the rank root_rank (of the job) to every rank's tensor, and returns that."""
    return _broadcast(plain(tensor), tensor, True, root_rank, name, process_set).wait()


# --- all-to-all --------------------------------------------------------------------------------------------------


def _alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Request:
    tensor = plain(tensor)
    counts = chosen_splits(tensor.shape, splits, process_set.size())
    return submit(AllToAll(KIT, tensor, counts), name, process_set, blocking)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Request:
    """Sends a block of rows to each rank. Returns a handle, whose result is the received rows and splits."""
    return _alltoall(tensor, splits, name, process_set, False)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = EVERYONE
) -> Any:
    """Sends a block of rows of the tensor to each rank.

    Args:
        splits: the number of rows for each rank of the process set, as a tensor or a sequence. None means equal blocks.

    Returns:
        The received rows, in rank order. If splits are given, also the number of rows from each rank, int32 [ranks].
    """
    received: list[Any] = []

    def run(x: Any) -> Any:
        found, counts = _alltoall(x, splits, name, process_set, True).wait()
        received.append(counts)
        return found

    def backward(gradient: Any) -> Any:
        back, _ = _alltoall(gradient, received[0], None, process_set, True).wait()
        if len(back) < len(tensor):  # the splits left rows out
            back = torch.cat([back, back.new_zeros((len(tensor) - len(back), *back.shape[1:]))])
        return back

    found = gradients.run(run, backward, tensor)
    return found if splits is None else (found, received[0])
