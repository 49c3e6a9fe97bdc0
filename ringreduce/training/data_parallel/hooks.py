"""Communication hooks: user functions that average buckets, with the interface of torch's DDP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.errors import TimeoutError
from ringreduce.training.foundation.bucket import Bucket
from ringreduce.training.foundation.exchange import Exchange, UnderWay

__all__ = ["CommHook", "GradBucket"]


class GradBucket:
    """The bucket that a communication hook gets, with the methods of ``torch.distributed.GradBucket``."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._buffer = bucket.buffer

    def index(self) -> int:
        """Returns its place in the order of sending. The parameters of a bucket change once, after the first step."""
        return self._bucket.index

    def buffer(self) -> Any:
        """Returns this rank's gradients, flat. The averages belong in the same memory."""
        return self._buffer

    def set_buffer(self, buffer: Any) -> None:
        """Replaces the tensor that :meth:`buffer` returns."""
        self._buffer = buffer

    def gradients(self) -> list[Any]:
        """Returns views of the gradients, with the parameters' shapes."""
        return [slot.view for slot in self._bucket.slots]

    def parameters(self) -> list[Any]:
        return [slot.parameter for slot in self._bucket.slots]

    def is_last(self) -> bool:
        """Returns whether this is the last bucket of a backward pass."""
        return self._bucket.last


class CommHook(Exchange):
    """Averages buckets with a user's function."""

    def __init__(self, comm: Communicator, state: Any, hook: Callable[[Any, GradBucket], Any]) -> None:
        super().__init__(comm)
        self._state = state
        self._hook = hook

    def regrouped(self, comm: Communicator) -> CommHook:
        """Returns the same hook on another group."""
        if hasattr(self._state, "regroup"):
            self._state.regroup(comm)
        return CommHook(comm, self._state, self._hook)

    def start(self, bucket: Bucket) -> UnderWay:
        began = time.monotonic()
        future = self._hook(self._state, GradBucket(bucket))
        if not hasattr(future, "add_done_callback"):
            raise TypeError(f"a communication hook must return a torch.futures.Future, not {future!r}")
        return HookUnderWay(bucket, future, began, self.comm.timeout)


class HookUnderWay(UnderWay):
    def __init__(self, bucket: Bucket, future: Any, began: float, timeout: float) -> None:
        self._bucket = bucket
        self._future = future
        self._began = began
        self._timeout = timeout
        self._end = End()
        future.add_done_callback(self._end.come)

    def finish(self) -> None:
        if not self._end.over.wait(self._timeout):
            raise TimeoutError(f"the communication hook's future is not complete after {self._timeout} s")
        value = self._future.value()
        average = value[0] if isinstance(value, list | tuple) else value
        if average.data_ptr() != self._bucket.buffer.data_ptr():
            self._bucket.buffer.copy_(average.view_as(self._bucket.buffer))

    def times(self) -> tuple[float, float]:
        return self._began, self._end.when


class End:
    """Records when a future completes. It has no bucket, so a future that never completes keeps none alive."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.when = 0.0

    def come(self, _future: Any) -> None:
        self.when = time.monotonic()
        self.over.set()
