"""Batch normalisation over the batches of all ranks, with the arguments of Horovod's."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod.job import Job, job, run_on
from ringreduce.frameworks.horovod.process_sets import global_process_set
from ringreduce.frameworks.horovod.request import CallOperation
from ringreduce.training.data_parallel.sync_batch_norm import SyncBatchNorm as OurSyncBatchNorm

__all__ = ["SyncBatchNorm"]

_groups: WeakKeyDictionary[Job, Communicator] = WeakKeyDictionary()


class SyncBatchNorm(OurSyncBatchNorm):
    """:class:`ringreduce.SyncBatchNorm` over all ranks.

    Ranks must call the layers of a model in the same order, in which the statistics are exchanged. The layers share a
    communicator of their own, which the first batch makes.
    """

    def forward(self, x: Any) -> Any:
        """Normalises x [batch, features, ...]. The result has the shape and dtype of x."""
        if self.training:
            here = job()
            if here not in _groups:
                # Not the job's own communicator: on that, calls come in the order in which they are negotiated.
                _groups[here] = run_on(
                    global_process_set, CallOperation("side_group", (), lambda comm: comm.split(0))
                )
            self.comm = _groups[here]
        return super().forward(x)
