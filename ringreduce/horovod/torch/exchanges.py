"""Operations that move torch tensors: all-gather, broadcast and all-to-all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ringreduce.communicator import Communicator
from ringreduce.horovod.request import Operation

__all__ = ["AllGather", "AllToAll", "Broadcast", "SparseAllReduce"]


def _kind(tensor: Any) -> tuple[Any, tuple[int | str, ...]]:
    """Returns dtype and shape, without the number of rows, which may differ between ranks."""
    return tensor.dtype, ("*", *tensor.shape[1:])


class AllGather(Operation):
    """Concatenates the ranks' tensors along the first axis. Ranks first exchange their numbers of rows."""

    def __init__(self, tensors: Sequence[Any], grouped: bool) -> None:
        self._tensors = [tensor if tensor.dim() else tensor.view(1) for tensor in tensors]
        self._grouped = grouped
        self.signature = "allgather", (), tuple([_kind(tensor) for tensor in self._tensors])

    def run(self, comm: Communicator) -> Any:
        rows = comm.all_gather(np.array([[tensor.shape[0] for tensor in self._tensors]]))
        found = []
        for tensor, counts in zip(self._tensors, rows.T.tolist(), strict=True):
            out = tensor.new_empty((sum(counts), *tensor.shape[1:]))
            found.append(comm.all_gather(tensor, out=out, counts=counts))
        return found if self._grouped else found[0]


class SparseAllReduce(AllGather):
    """Adds sparse COO tensors [shape]: gathers all ranks' indices and values. Equal indices are not merged."""

    def __init__(self, tensor: Any, average: bool) -> None:
        super().__init__([tensor._indices().t().contiguous(), tensor._values()], True)
        settings = (("average", average),)
        self.signature = "sparse_allreduce", settings, ((tensor.dtype, tensor.shape), *self.signature[2])
        self._tensor, self._average = tensor, average

    def run(self, comm: Communicator) -> Any:
        indices, values = super().run(comm)
        if self._average:
            values /= comm.size
        return torch.sparse_coo_tensor(indices.t(), values, self._tensor.shape, check_invariants=False)


class Broadcast(Operation):
    """Copies the root's tensor to the others'.

    Args:
        root: the root's rank in the job.
        place: the root's place in the process set.
        result: what the call returns.
    """

    def __init__(self, tensor: Any, root: int, place: int, result: Any) -> None:
        self.signature = "broadcast", (("root_rank", root),), ((tensor.dtype, tensor.shape),)
        self._tensor, self._place, self._result = tensor, place, result

    def run(self, comm: Communicator) -> Any:
        comm.broadcast(self._tensor, self._place)
        return self._result


class AllToAll(Operation):
    """Sends each rank a block of rows. Ranks first exchange the numbers of rows.

    Args:
        splits: the number of rows for each rank.
    """

    def __init__(self, tensor: Any, splits: Sequence[int]) -> None:
        self.signature = "alltoall", (), (_kind(tensor),)
        self._tensor, self._splits = tensor, splits

    def run(self, comm: Communicator) -> tuple[Any, Any]:
        """Returns the received rows, and the number of them from each rank, int32 [ranks]."""
        received = comm.all_to_all(np.array(self._splits, np.int64))
        counts = received.tolist()
        out = self._tensor.new_empty((sum(counts), *self._tensor.shape[1:]))
        comm.all_to_all(
            self._tensor[: sum(self._splits)], out=out, send_counts=self._splits, recv_counts=counts
        )
        return out, torch.from_numpy(received.astype(np.int32))
