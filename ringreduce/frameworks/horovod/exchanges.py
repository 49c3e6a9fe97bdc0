"""Operations that move arrays: all-gather, broadcast and all-to-all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod.kit import Kit
from ringreduce.frameworks.horovod.request import Operation

__all__ = ["AllGather", "AllToAll", "BroadcastOperation"]


def _kind(kit: Kit, tensor: Any) -> tuple[Any, tuple[int | str, ...]]:
    """Returns dtype and shape, without the number of rows, which may differ between ranks."""
    return kit.kind(tensor), ("*", *tensor.shape[1:])


class AllGather(Operation):
    """Concatenates the ranks' tensors along the first axis. Ranks first exchange their numbers of rows."""

    def __init__(self, kit: Kit, tensors: Sequence[Any], grouped: bool) -> None:
        self._kit, self._grouped = kit, grouped
        self._tensors = [tensor if tensor.shape else tensor.reshape(1) for tensor in tensors]
        self.signature = "allgather", (), tuple([_kind(kit, tensor) for tensor in self._tensors])

    def run(self, comm: Communicator) -> Any:
        rows = comm.all_gather(np.array([[tensor.shape[0] for tensor in self._tensors]]))
        found = []
        for tensor, counts in zip(self._tensors, rows.T.tolist(), strict=True):
            out = self._kit.empty((sum(counts), *tensor.shape[1:]), tensor)
            found.append(comm.all_gather(tensor, out=out, counts=counts))
        return found if self._grouped else found[0]


class BroadcastOperation(Operation):
    """Copies the root's tensor to the others'.

    Args:
        root: the root's rank in the job.
        place: the root's place in the process set.
        result: what the call returns.
    """

    def __init__(self, kit: Kit, tensor: Any, root: int, place: int, result: Any) -> None:
        self.signature = "broadcast", (("root_rank", root),), ((kit.kind(tensor), tensor.shape),)
        self._tensor, self._place, self._result = tensor, place, result

    def run(self, comm: Communicator) -> Any:
        comm.broadcast(self._tensor, self._place)
        return self._result


class AllToAll(Operation):
    """Sends each rank a block of rows. Ranks first exchange the numbers of rows.

    Args:
        splits: the number of rows for each rank.
    """

    def __init__(self, kit: Kit, tensor: Any, splits: Sequence[int]) -> None:
        self.signature = "alltoall", (), (_kind(kit, tensor),)
        self._kit = kit
        self._tensor, self._splits = tensor, splits

    def run(self, comm: Communicator) -> tuple[Any, Any]:
        """Returns the received rows, and the number of them from each rank, int32 [ranks]."""
        received = comm.all_to_all(np.array(self._splits, np.int64))
        counts = received.tolist()
        out = self._kit.empty((sum(counts), *self._tensor.shape[1:]), self._tensor)
        comm.all_to_all(
            self._tensor[: sum(self._splits)], out=out, send_counts=self._splits, recv_counts=counts
        )
        return out, self._kit.numbers(received.astype(np.int32))
