"""The all-reduce of sparse torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod.exchanges import AllGather
from ringreduce.frameworks.horovod.torch.kit import KIT

__all__ = ["SparseAllReduce"]


class SparseAllReduce(AllGather):
    """Adds sparse COO tensors [shape]: gathers all ranks' indices and values. Equal indices are not merged."""

    def __init__(self, tensor: Any, average: bool) -> None:
        super().__init__(KIT, [tensor._indices().t().contiguous(), tensor._values()], True)
        settings = (("average", average),)
        self.signature = "sparse_allreduce", settings, ((tensor.dtype, tensor.shape), *self.signature[2])
        self._tensor, self._average = tensor, average

    def run(self, comm: Communicator) -> Any:
        indices, values = super().run(comm)
        if self._average:
            values /= comm.size
        return torch.sparse_coo_tensor(indices.t(), values, self._tensor.shape, check_invariants=False)
