"""The hook, and what the states of all methods have in common."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.bucket import Bucket
from ringreduce.compression.group import Group, all_reduce_bytes, group_like
from ringreduce.compression.worker import Worker

__all__ = ["Compression", "hook"]

Tensor = Any  # torch.Tensor
LAST_WAIT = 2.0  # seconds that a program which ends by an exception waits for a collective under way


def hook(state: Compression, bucket):  # type: ignore[no-untyped-def]  # torch allows bucket no annotation but its own
    """The communication hook of all methods, for ``register_comm_hook(state, compression.hook)``.

    Returns:
        A torch.futures.Future of the bucket's buffer, which by then has the average of the ranks' gradients. What goes
        wrong is the future's exception.
    """
    return state.submit(bucket)


class Compression(ABC):
    """The state of a communication hook: one method with its settings, errors fed back, and counts.

    The exchange of a bucket takes several collectives. They are made by a thread of the state, bucket after bucket, on
    a group of its own, so that backward goes on meanwhile. Gradients are float32 while they are worked on, whatever
    they are in the model. All ranks end with the same bits, provided that their processors round alike.

    Where a rank's gradient has an inf or NaN, all ranks get some in that bucket, so that all skip the step alike, and
    none gets into the errors that are fed back.

    Args:
        group: a :class:`ringreduce.Communicator` or a torch ProcessGroup; None takes torch.distributed's default group
            if there is one, else :func:`ringreduce.world`. Its ranks make the state at the same time.
        timeout: seconds after which a collective on a ProcessGroup gives up. (A Communicator has its own timeout.)

    Attributes:
        bytes_uncompressed: what this rank would have sent by all_reduces of the gradients as they are: for S bytes
            2 (N-1)/N S.

    Raises:
        TypeError: group is something else.
        ValueError: timeout is not positive, or this process is not a rank of group.
    """

    def __init__(self, group: Any = None, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, not {timeout}")
        self._group: Group = group_like(group, timeout)
        self._worker = Worker(type(self).__name__)
        self.bytes_uncompressed = 0
        self._step = 0
        self._numbers: dict[int, int] = {}  # of parameters, by id;
        self._seen: list[Any] = []  # which stays theirs as long as they are kept here
        self._failure: Exception | None = None
        self._end = weakref.finalize(self, _end, self._worker, self._group)

    @property
    def bytes_sent(self) -> int:
        """What this rank has sent so far; :class:`~ringreduce.compression.group.Group` has the formulas."""
        return self._group.bytes_sent

    def submit(self, bucket: Any) -> Any:
        """Starts the exchange of a bucket: anything with the methods of torch.distributed.GradBucket.

        Raises:
            ValueError: the state is closed, or the gradients are not of real numbers in the CPU's memory.
        """
        if not self._end.alive:
            raise ValueError(f"this {type(self).__name__} is closed")
        buffer = bucket.buffer()
        if not buffer.dtype.is_floating_point or buffer.device.type != "cpu":
            raise ValueError(f"gradients must be real and on the CPU, not {buffer.dtype} on {buffer.device}")
        gradients = bucket.gradients()
        if sum(gradient.numel() for gradient in gradients) != buffer.numel():
            raise ValueError("the bucket's buffer must hold its gradients and nothing else")
        seen = Bucket(
            flat=buffer,
            parameters=tuple(self._number(parameter) for parameter in bucket.parameters()),
            shapes=tuple(tuple(gradient.shape) for gradient in gradients),
            lengths=tuple(gradient.numel() for gradient in gradients),
            step=self._step,
        )
        self._step += bucket.is_last()
        self.bytes_uncompressed += all_reduce_bytes(buffer.nbytes, self._group.size)
        future: Any = torch.futures.Future()
        self._worker.give(partial(self._exchange, seen, future))
        return future

    def _number(self, parameter: Any) -> int:
        number = self._numbers.setdefault(id(parameter), len(self._seen))
        if number == len(self._seen):
            self._seen.append(parameter)
        return number

    def _exchange(self, bucket: Bucket, future: Any) -> None:
        """On the worker's thread. After a failure the ranks' collectives no longer match, and none is tried."""
        if self._failure is None:
            self._failure = self._try_to_average(bucket)
        if self._failure is None:
            future.set_result(bucket.flat)
        else:
            future.set_exception(self._failure)

    def _try_to_average(self, bucket: Bucket) -> Exception | None:
        """Apart from _exchange(), so that an error's traceback does not keep the future that keeps the error."""
        try:
            with torch.no_grad():
                flat = bucket.flat.float()
                self._average(replace(bucket, flat=flat))
                if flat is not bucket.flat:
                    bucket.flat.copy_(flat)
        except Exception as error:
            return error
        return None

    @abstractmethod
    def _average(self, bucket: Bucket) -> None:
        """Leaves the average of the ranks' bucket.flat there; blocks."""

    # --- saving ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on later: tensors and numbers. Not to be called in the middle of a step.

        Parameters go by the order in which the wrapper first showed them, which is the same for the same model in the
        same wrapper with the same bucket sizes.
        """
        self._drain()
        own = {"method": type(self).__name__, "rank": self._group.rank, "size": self._group.size}
        return {**own, "step": self._step, "memory": self._memory()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Takes what :meth:`state_dict` of the same rank returned, before the first step.

        Raises:
            ValueError: it is of another method, rank or number of ranks, or there was a step already. (A saved model
                of another number of ranks goes on well with new states: what the errors held is then lost once.)
        """
        own = {"method": type(self).__name__, "rank": self._group.rank, "size": self._group.size}
        for name, value in own.items():
            if saved.get(name) != value:
                raise ValueError(f"saved is of {name} {saved.get(name)}, this state of {name} {value}")
        if self._seen:
            raise ValueError("load_state_dict must be called before the first step")
        self._step = int(saved["step"])
        self._load_memory(saved["memory"])

    def _memory(self) -> dict[str, Any]:
        """Tensors that go from one step to the next."""
        return {}

    def _load_memory(self, saved: dict[str, Any]) -> None:
        """Takes what _memory() returned."""
        if saved:
            raise ValueError(f"{type(self).__name__} has no memory, but saved has: {', '.join(saved)}")

    def _drain(self) -> None:
        """Waits until what was submitted is done."""
        done = threading.Event()
        self._worker.give(done.set)
        done.wait()

    def close(self) -> None:
        """Waits for exchanges under way and ends the thread. Doing it twice is fine; so is leaving it out."""
        self._end()


def _end(worker: Worker, group: Group) -> None:
    """When the state is closed or gone, or the interpreter ends."""
    if getattr(sys, "last_value", None) is not None:  # by an exception: peers may never come
        worker.stop(LAST_WAIT)
    else:
        worker.stop()
        group.close()
