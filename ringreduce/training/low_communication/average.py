"""An average over the ranks, computed in the background."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import torch

from ringreduce import _engine
from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.communicator.work import Work
from ringreduce.errors import Error
from ringreduce.training.compression.group_copy import all_reduce_bytes
from ringreduce.training.foundation.assignment import make_buckets
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.exchange import AllReduce, UnderWay
from ringreduce.training.foundation.timings import StepTimings
from ringreduce.training.low_communication.outer import Tensor

__all__ = ["Average"]


class Average:
    """Averages tensors over the ranks, in memory that is allocated once.

    Args:
        like: tensors with the dtypes and shapes of those to average.
        wire: the format in which they travel.
    """

    def __init__(self, like: Sequence[Tensor], comm: Communicator, wire: Wire | None) -> None:
        self._wire = wire
        slots = [Slot(number, "", tensor) for number, tensor in enumerate(like)]
        self._buckets = make_buckets(slots, math.inf, math.inf)  # one for each dtype and device
        for bucket in self._buckets:
            bucket.use(bucket.allocate())
        self.views = [slot.view for slot in slots]
        self._started = 0.0
        self.regroup(comm)

    def regroup(self, comm: Communicator) -> None:
        """Averages over the ranks of another group from now on. An average in flight is dropped."""
        self._comm, self._exchange = comm, AllReduce(comm, self._wire)
        self.nbytes = sum(
            all_reduce_bytes(_encoded_bytes(bucket, self._wire), comm.size) for bucket in self._buckets
        )
        self._under_way: list[tuple[Bucket, UnderWay]] = []
        self._work: Work | None = None
        self._facts = np.zeros((comm.size, 2))

    def start(self, values: list[Tensor], steps: int, seconds: float = 0.0, weight: float = 1.0) -> None:
        """Starts to average the ranks' values. Does not wait.

        Args:
            steps: the number of this rank's steps, which must be that of the others.
            seconds: a number to tell the other ranks.
            weight: the weight of this rank's values; 1 is the mean of the ranks' weights.
        """
        torch._foreach_copy_(self.views, values)
        if weight != 1:
            torch._foreach_mul_(self.views, weight)
        self._started = time.monotonic()
        own = np.array([[steps, seconds]])
        self._work = self._comm.all_gather(own, out=self._facts, async_op=True)
        self._under_way = [(bucket, self._exchange.start(bucket)) for bucket in self._buckets]

    def finish(self) -> list[Tensor]:
        """Waits for the averages, and returns them. Calling it again returns them once more.

        Raises:
            Error: the ranks' numbers of steps differ.
        """
        if self._work is not None:
            self._exchange.meter.wait_for(self._work.wait)
            self._work = None
            self._check_steps()
            for bucket, under_way in self._under_way:
                self._exchange.meter.wait(bucket, self._started, under_way)
        return self.views

    def load(self, averages: list[Tensor]) -> None:
        """Lets :meth:`finish` return averages that it has returned before."""
        torch._foreach_copy_(self.views, averages)

    @property
    def seconds(self) -> list[float]:
        """The numbers that the ranks exchanged with the last average."""
        found: list[float] = self._facts[:, 1].tolist()
        return found

    def timings(self) -> StepTimings:
        """Returns the times of the exchanges that have finished since the last call."""
        return self._exchange.meter.take()

    def _check_steps(self) -> None:
        steps = self._facts[:, 0].astype(int).tolist()
        if len(set(steps)) > 1:
            made = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(steps))
            raise Error(f"the ranks synchronise after different numbers of steps: {made}")


def _encoded_bytes(bucket: Bucket, wire: Wire | None) -> int:
    if wire is None or bucket.like.dtype != torch.float32:
        return bucket.nbytes
    return _engine.reduce.encoded_bytes(wire, bucket.length)
