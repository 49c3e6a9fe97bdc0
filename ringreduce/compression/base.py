"""The hook, and what methods are made of: the gradients of a bucket, what is remembered of them, and the state."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.group import Group, Tensor, all_reduce_bytes

__all__ = ["Compression", "Gradients", "Memory", "hook"]

Job = Callable[[], None]  # must not raise
LAST_WAIT = 2.0  # seconds that a program which ends by an exception waits for a collective under way


def hook(state: Compression, bucket):  # type: ignore[no-untyped-def]  # torch allows bucket no annotation but its own
    """The communication hook of all methods, for ``register_comm_hook(state, compression.hook)``.

    It returns a torch.futures.Future of the bucket's buffer, which by then has the average of the ranks' gradients.
    What goes wrong is the future's exception.
    """
    return state.submit(bucket)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a bucket's parameters, one behind the other.

    Attributes:
        flat: float32 [n]; a method reads the gradients here and leaves the averages in their place.
        parameters: their numbers, in the order in which the state first saw parameters.
        shapes: torch.Size of each parameter.
        step: how many steps were before; the same for all buckets of a step.
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
        """Views of flat, which is laid out as the gradients are, one for each parameter and of its shape."""
        return [part.view(shape) for part, shape in zip(flat.split(self.lengths), self.shapes, strict=True)]


class Memory(dict[int, Tensor]):
    """A float32 for each element of the gradient, zero at first: flat tensors by the parameters' numbers.

    Methods see it as one flat tensor per bucket, but it belongs to the parameters: after the first step both wrappers
    put parameters into other buckets, in the order in which their gradients come.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flats: dict[tuple[int, ...], Tensor] = {}  # of today's buckets: self's values are views of them

    def flat(self, parameters: tuple[int, ...], lengths: list[int]) -> Tensor:
        """What belongs to a bucket of these parameters, to be read and written.

        Raises:
            ValueError: a parameter has another length in what was loaded.
        """
        if parameters not in self._flats:
            flat: Tensor = torch.zeros(sum(lengths))
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
    """The state of a communication hook: one method with its settings, errors fed back, and counts.

    The collectives of a bucket are made by a thread of the state, so that backward goes on meanwhile. Gradients are
    float32 while they are worked on, whatever they are in the model. All ranks end with the same bits, provided that
    their processors round alike. An inf or NaN on one rank shows on all in that bucket, and no error keeps it.

    Args:
        group: a :class:`ringreduce.Communicator` or a torch ProcessGroup; None takes torch.distributed's default group
            if there is one, else :func:`ringreduce.world`. Its ranks make the state at the same time.
        timeout: seconds after which a collective on a ProcessGroup gives up. (A Communicator has its own timeout.)

    Attributes:
        bytes_uncompressed: what this rank would have sent by all_reduces of the gradients as they are: for S bytes
            2 (N-1)/N S.

    Raises:
        TypeError: group is something else.
        ValueError: an argument of the method is out of range, or this process is not a rank of group.
    """

    group: InitVar[Any] = None
    timeout: float = field(default=DEFAULT_TIMEOUT, kw_only=True)
    start_iter = 0  # how many steps are not compressed at first; some methods have it as an argument

    def __post_init__(self, group: Any) -> None:
        self._require("timeout", self.timeout > 0, "be positive")
        self._require("start_iter", self.start_iter >= 0, "not be negative")
        self._group = Group(group, self.timeout)
        self._memory: dict[str, dict[Any, Tensor]] = {}  # what goes from one step to the next, by name
        self.bytes_uncompressed = 0
        self._step = 0
        self._numbers: dict[Any, int] = {}  # of parameters
        self._failure: Exception | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A daemon, so that a program that ends in the middle of a collective does not wait for its peers.
        thread = threading.Thread(target=_work, args=(self._jobs,), name=type(self).__name__, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, thread, self._group)

    def _require(self, name: str, met: bool, condition: str) -> None:
        if not met:
            raise ValueError(f"{name} must {condition}, not {getattr(self, name)!r}")

    @property
    def bytes_sent(self) -> int:
        """What this rank has sent so far, by the formulas in docs/training.md."""
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
        numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in bucket.parameters()]
        shapes = tuple(gradient.shape for gradient in bucket.gradients())
        gradients = Gradients(buffer, tuple(numbers), shapes, self._step)
        if sum(gradients.lengths) != buffer.numel():
            raise ValueError("the bucket's buffer must hold its gradients and nothing else")
        self._step += bucket.is_last()
        self.bytes_uncompressed += all_reduce_bytes(buffer.nbytes, self._group.size)
        future: Any = torch.futures.Future()
        self._jobs.put(partial(self._exchange, gradients, future))
        return future

    def _exchange(self, gradients: Gradients, future: Any) -> None:
        """On the state's thread. After a failure the ranks' collectives no longer match, and none is tried."""
        try:
            if self._failure is None:
                self._average_as_float32(gradients)
        except Exception as error:
            # This frame refers to the future, which is to keep the error: the error must not keep the frame.
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
        gradients.flat.copy_(wide.flat)  # does nothing where they are the same tensor

    @abstractmethod
    def _average(self, gradients: Gradients) -> None:
        """Leaves the averages over the ranks in gradients.flat; blocks."""

    # --- saving ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on later: tensors and numbers. Not to be called in the middle of a step.

        Parameters go by the order in which the wrapper first showed them, which is the same for the same model in the
        same wrapper with the same bucket sizes.
        """
        if self._end.alive:  # else all is done
            idle = threading.Event()
            self._jobs.put(idle.set)
            idle.wait()
        return {**self._owner(), "step": self._step, "memory": _copied(self._memory)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Takes what :meth:`state_dict` of the same rank returned, before the first step.

        Raises:
            ValueError: it is of another method, rank or number of ranks, or there was a step already. (A saved model
                of another number of ranks goes on well with new states: what the errors held is then lost once.)
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
        """Waits for exchanges under way and ends the thread. Doing it twice is fine; so is leaving it out."""
        self._end()


def _copied(memory: dict[str, dict[Any, Tensor]]) -> dict[str, dict[Any, Tensor]]:
    return {name: {key: tensor.clone() for key, tensor in kept.items()} for name, kept in memory.items()}


def _work(jobs: SimpleQueue[Job | None]) -> None:
    """A state's thread: jobs in the order in which they are given. It must not refer to the state, which ends it."""
    while (job := jobs.get()) is not None:
        job()
        del job  # what it refers to may go while we wait for the next


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread, group: Group) -> None:
    """When the state is closed or gone, or the interpreter ends."""
    failed = getattr(sys, "last_value", None) is not None  # by an exception: peers may never come
    jobs.put(None)
    if threading.current_thread() is not thread:
        thread.join(LAST_WAIT if failed else None)
    if not failed:
        group.close()
