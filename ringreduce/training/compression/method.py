"""The communication hook, and the base class of its states."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.errors import ClosedError
from ringreduce.training.compression.group_copy import GroupCopy, Tensor, all_reduce_bytes

__all__ = ["Compression", "Gradients", "Memory", "hook"]

Job = Callable[[], None]  # must not raise
LAST_WAIT = 2.0  # seconds to wait for a running collective if an exception ends the program


def hook(state: Compression, bucket):  # type: ignore[no-untyped-def]  # torch accepts only its own annotation of bucket
    """Averages a bucket with the state's method. Pass it to ``register_comm_hook(state, compression.hook)``.

    It returns a torch.futures.Future of the bucket's buffer, which then holds the average of the ranks' gradients. An
    error becomes the future's exception.
    """
    return state.submit(bucket)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a bucket's parameters, one after another.

    Attributes:
        flat: the gradients, float32 [n]. A method replaces them with the averages.
        parameters: the parameters' numbers, counted in the order in which the state first saw them.
        shapes: the torch.Size of each parameter.
        step: the number of earlier steps; the same for all buckets of a step.
    """

    flat: Tensor
    parameters: tuple[int, ...]
    shapes: tuple[Any, ...]
    step: int

    @property
    def lengths(self) -> list[int]:
        """The number of elements of each parameter."""
        return [shape.numel() for shape in self.shapes]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Returns a view for each parameter, with its shape, of a tensor that has the layout of the gradients."""
        return [part.view(shape) for part, shape in zip(flat.split(self.lengths), self.shapes, strict=True)]


class Memory(dict[int, Tensor]):
    """A float32 for each element of the gradient, initially zero: flat tensors, by the parameters' numbers.

    Methods use one flat tensor per bucket, but the values belong to the parameters: after the first step both wrappers
    put the parameters into new buckets, in the order in which their gradients come.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flats: dict[
            tuple[int, ...], Tensor
        ] = {}  # of the current buckets: self's values are views of them

    def clear(self) -> None:
        super().clear()
        self._flats.clear()

    def flat(self, parameters: tuple[int, ...], lengths: list[int], device: Any) -> Tensor:
        """Returns the values of a bucket of these parameters, to be read and written, in a device's memory.

        Raises:
            ValueError: the loaded values of a parameter have a different length.
        """
        if parameters not in self._flats:
            flat: Tensor = torch.zeros(sum(lengths), device=device)
            for number, view in zip(parameters, flat.split(lengths), strict=True):
                old = self.get(number, view)
                if len(old) != len(view):
                    raise ValueError(
                        f"the state is of another model: parameter {number} has {len(view)} elements, "
                        f"and {len(old)} in what was loaded"
                    )
                self[number] = view.copy_(old)
            self._flats = {key: kept for key, kept in self._flats.items() if not set(key) & set(parameters)}
            self._flats[parameters] = flat
        return self._flats[parameters]


@dataclass(eq=False, repr=False)
class Compression(ABC):
    """The state of a communication hook: a method with its settings, its error feedback, and byte counts.

    A thread of the state runs the collectives of a bucket, while the backward pass continues; on GPUs, on a stream of
    the state. Gradients are computed in float32, whatever their dtype in the model. All ranks get the same bits, if
    their processors round alike. An inf or NaN on one rank appears on all ranks in that bucket, but does not enter the
    fed-back errors.

    Args:
        group: a :class:`ringreduce.Communicator` or a torch ProcessGroup. None takes torch.distributed's default group
            if it is initialized, else :func:`ringreduce.world`. All its ranks must create the state at the same time.
        timeout: the seconds after which a collective on a ProcessGroup gives up. (A Communicator has its own timeout.)

    Attributes:
        bytes_uncompressed: the bytes that this rank would have sent by all-reduces of the uncompressed gradients:
            2 (N-1)/N S for S bytes.

    Raises:
        TypeError: group has the wrong type.
        ValueError: an argument of the method is out of range, or this process is not a rank of group.
    """

    group: InitVar[Any] = None
    timeout: float = field(default=DEFAULT_TIMEOUT, kw_only=True)
    start_iter = 0  # the number of uncompressed steps at the start; an argument of some methods

    def __post_init__(self, group: Any) -> None:
        self._require("timeout", self.timeout > 0, "be positive")
        self._require("start_iter", self.start_iter >= 0, "not be negative")
        self._group = GroupCopy(group, self.timeout)
        self._memory: dict[str, dict[Any, Tensor]] = {}  # values that are kept between steps, by name
        self.bytes_uncompressed = 0
        self._step = 0
        self._numbers: dict[Any, int] = {}  # of parameters
        self._failure: Exception | None = None
        self._streams: dict[Any, Any] = {}  # by GPU
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A daemon: a program that ends in the middle of a collective must not wait for its peers.
        self._thread = threading.Thread(
            target=_work, args=(self._jobs,), name=type(self).__name__, daemon=True
        )
        self._thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, self._thread, self._group)

    def regroup(self, comm: Communicator) -> None:
        """Continues with the ranks of another group. All of them must call it, outside backward passes.

        Exchanges of a backward pass that was not finished fail. The errors that were to be fed back are lost, because
        they belong to other ranks' samples.
        """
        self._end.detach()
        # Exchanges that have not begun do not begin, and those that have begun end.
        self._failure = self._failure or ClosedError("the ranks have changed")
        self._group.close()
        self._wait_until_idle()
        sent, self._group = self._group.bytes_sent, GroupCopy(comm, self.timeout)
        self._group.bytes_sent = sent
        for kept in self._memory.values():
            kept.clear()
        self._numbers, self._failure = {}, None
        self._step = int(comm.all_reduce(torch.tensor(self._step), "max"))
        self._end = weakref.finalize(self, _end, self._jobs, self._thread, self._group)

    def _require(self, name: str, met: bool, condition: str) -> None:
        if not met:
            raise ValueError(f"{name} must {condition}, not {getattr(self, name)!r}")

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank has sent so far, by the formulas in docs/training.md."""
        return self._group.bytes_sent

    def submit(self, bucket: Any) -> Any:
        """Starts the exchange of a bucket, and returns its future. See :func:`hook`.

        Args:
            bucket: an object with the methods of torch.distributed.GradBucket.

        Raises:
            ValueError: the state is closed, or the gradients are not real numbers in CPU or CUDA memory.
        """
        if not self._end.alive:
            raise ValueError(f"this {type(self).__name__} is closed")
        buffer = bucket.buffer()
        if not buffer.dtype.is_floating_point or buffer.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"gradients must be real and on a CPU or CUDA GPU, not {buffer.dtype} on {buffer.device}"
            )
        numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in bucket.parameters()]
        shapes = tuple(gradient.shape for gradient in bucket.gradients())
        gradients = Gradients(buffer, tuple(numbers), shapes, self._step)
        if sum(gradients.lengths) != buffer.numel():
            raise ValueError("the bucket's buffer must hold its gradients and nothing else")
        self._step += bucket.is_last()
        self.bytes_uncompressed += all_reduce_bytes(buffer.nbytes, self._group.size)
        stream = self._stream_after_current(buffer.device)
        future: Any = torch.futures.Future(devices=[buffer.device] if stream else None)
        self._jobs.put(partial(self._exchange, gradients, future, stream))
        return future

    def _stream_after_current(self, device: Any) -> Any:
        """Returns the state's stream on a GPU, which waits for the work on the current one; None for the CPU."""
        if device.type == "cpu":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._streams[device].wait_stream(torch.cuda.current_stream(device))
        return self._streams[device]

    def _exchange(self, gradients: Gradients, future: Any, stream: Any) -> None:
        """Runs on the state's thread. After a failure the ranks' collectives no longer match, so it runs none."""
        with torch.cuda.stream(stream) if stream else nullcontext():
            try:
                if self._failure is None:
                    self._average_as_float32(gradients)
            except Exception as error:
                # The future keeps the error, and this frame the future: the error must not keep this frame, too.
                self._failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
            if self._failure is None:
                future.set_result(gradients.flat)
            else:
                future.set_exception(self._failure)

    @torch.no_grad()
    def _average_as_float32(self, gradients: Gradients) -> None:
        wide = replace(gradients, flat=gradients.flat.float())
        if gradients.step < self.start_iter:
            self._group.mean(wide.flat)
        else:
            self._average(wide)
        gradients.flat.copy_(wide.flat)  # does nothing if they are the same tensor

    @abstractmethod
    def _average(self, gradients: Gradients) -> None:
        """Replaces gradients.flat with the averages over the ranks. Blocks."""

    # --- saving ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state, as tensors and numbers. Do not call it in the middle of a step.

        Parameters are numbered in the order in which the wrapper first passed them. This order is the same for the same
        model in the same wrapper with the same bucket sizes.
        """
        if self._end.alive:  # a closed state has no jobs left
            self._wait_until_idle()
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)
        return {**self._owner(), "step": self._step, "memory": _copied(self._memory)}

    def _wait_until_idle(self) -> None:
        idle = threading.Event()
        self._jobs.put(idle.set)
        idle.wait()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Loads a state that :meth:`state_dict` returned on the same rank. Call it before the first step.

        Raises:
            ValueError: the state is of a different method, rank or number of ranks, or there was a step already. (With
                a different number of ranks, create new states. Only the accumulated errors are lost.)
        """
        for name, value in self._owner().items():
            if saved.get(name) != value:
                raise ValueError(f"saved is of {name} {saved.get(name)}, this state of {name} {value}")
        if self._numbers:
            raise ValueError("load_state_dict must be called before the first step")
        if saved["memory"].keys() != self._memory.keys():
            raise ValueError(f"saved has the memory {[*saved['memory']]}, this state {[*self._memory]}")
        self._step = int(saved["step"])
        for name, kept in _copied(saved["memory"]).items():
            self._memory[name].clear()
            self._memory[name].update(kept)

    def _owner(self) -> dict[str, Any]:
        return {"method": type(self).__name__, "rank": self._group.rank, "size": self._group.size}

    def close(self) -> None:
        """Waits for running exchanges and ends the thread. Optional; calling it again does nothing."""
        self._end()


def _copied(memory: dict[str, dict[Any, Tensor]]) -> dict[str, dict[Any, Tensor]]:
    return {name: {key: tensor.clone() for key, tensor in kept.items()} for name, kept in memory.items()}


def _work(jobs: SimpleQueue[Job | None]) -> None:
    """Runs a state's jobs in order, on its thread. It must not refer to the state, whose end ends the thread."""
    while (job := jobs.get()) is not None:
        job()
        del job  # frees its references during the wait for the next job


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread, group: GroupCopy) -> None:
    """Ends the thread, when the state is closed or deleted, or the interpreter ends."""
    failed = getattr(sys, "last_value", None) is not None  # by an exception: peers may never make their calls
    jobs.put(None)
    if threading.current_thread() is not thread:
        thread.join(LAST_WAIT if failed else None)
    if not failed:
        group.close()
