"""Communication hooks: averaging buckets in another way, with torch DDP's interface."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.bucket import Bucket
from ringreduce.data_parallel.exchange import Exchange, UnderWay
from ringreduce.errors import TimeoutError

__all__ = ["CommHook", "GradBucket"]


class GradBucket:
    """A bucket as a communication hook sees it; the methods are those of ``torch.distributed.GradBucket``."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._buffer = bucket.buffer

    def index(self) -> int:
        """Its place in the order in which buckets are sent. What is in it changes once, after the first step."""
        return self._bucket.index

    def buffer(self) -> Any:
        """This rank's gradients, flat, in the memory in which the averages are wanted."""
        return self._buffer

    def set_buffer(self, buffer: Any) -> None:
        """Has :meth:`buffer` return another tensor."""
        self._buffer = buffer

    def gradients(self) -> list[Any]:
        """Views of the gradients with the parameters' shapes."""
        return [slot.view for slot in self._bucket.slots]

    def parameters(self) -> list[Any]:
        return [slot.parameter for slot in self._bucket.slots]

    def is_last(self) -> bool:
        """Whether it is the last bucket of a backward pass."""
        return self._bucket.last


class CommHook(Exchange):
    """Averages buckets by a user's function."""

    def __init__(self, comm: Communicator, state: Any, hook: Callable[[Any, GradBucket], Any]) -> None:
        super().__init__(comm)
        self._state = state
        self._hook = hook

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
    """When a future was complete. It does not know the bucket: a future that never is must not keep that alive."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.when = 0.0

    def come(self, _future: Any) -> None:
        self.when = time.monotonic()
        self.over.set()
