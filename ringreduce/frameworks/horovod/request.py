"""What ranks compare about an operation before they run it, and the handle of an operation on this rank."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ringreduce.communicator import Communicator

__all__ = ["CallOperation", "Operation", "Request", "Signature", "describe", "stand_in", "stand_ins"]

# What must be the same on all ranks: the kind, its settings by name, and (dtype, shape) of each tensor.
Signature = tuple[str, tuple[tuple[str, Any], ...], tuple[tuple[Any, Sequence[int | str]], ...]]


class Operation(ABC):
    """An operation that all ranks run together, once all have submitted it.

    Attributes:
        signature: what must be the same on all ranks.
    """

    signature: Signature

    @property
    def key(self) -> Hashable:
        """What operations have in common that may run as one; None if this one runs alone.

        The signature determines it, so ranks decide alike.
        """
        return None

    @abstractmethod
    def run(self, comm: Communicator) -> Any:
        """Runs it and returns its result. Every rank of comm calls it.

        Raises:
            ValueError: an argument is invalid, on every rank.
        """

    def run_with(self, comm: Communicator, others: Sequence[Any]) -> list[Any]:
        """Runs this operation and others of the same key, and returns all results."""
        return [one.run(comm) for one in (self, *others)]


class CallOperation(Operation):
    """An operation that calls a function of the communicator. Without a function it is a barrier."""

    def __init__(
        self,
        kind: str,
        settings: tuple[tuple[str, Any], ...] = (),
        function: Callable[[Communicator], Any] | None = None,
    ) -> None:
        self.signature = (kind, settings, ())
        self._function = function

    def run(self, comm: Communicator) -> Any:
        return None if self._function is None else self._function(comm)


# By the type of a framework's dtypes: makes the operation on zeros that a rank runs after it has joined.
stand_ins: dict[type, Callable[[Signature], Operation]] = {}


def stand_in(signature: Signature) -> Operation:
    """Returns the operation of a rank that has joined, in place of one with this signature."""
    kind, settings, tensors = signature
    return stand_ins[type(tensors[0][0])](signature) if tensors else CallOperation(kind, settings)


class Request:
    """An operation that this rank has submitted under a name. It is the handle that ``*_async`` functions return.

    Attributes:
        owner: an object with ``wait(request)``, which returns when the request is done.
        done: whether the operation has completed or failed.
        result, error: what came of it.
        submitted: when, in seconds of time.monotonic().
        then: called with the request when it is done, in the thread that has completed it; or None.
    """

    __slots__ = ("done", "error", "name", "operation", "owner", "result", "submitted", "then")

    def __init__(
        self, name: str, operation: Operation, owner: Any, then: Callable[[Request], None] | None = None
    ) -> None:
        self.name = name
        self.operation = operation
        self.owner = owner
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.submitted = time.monotonic()
        self.then = then

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result, self.error = result, error
        self.done = True  # last: other threads look at it
        if self.then is not None:
            self.then(self)

    def __call__(self) -> Any:
        """Does what :meth:`wait` does: Horovod's handles of sparse tensors are called."""
        return self.wait()

    def wait(self) -> Any:
        """Waits until it is done, and returns its result or raises its error."""
        if not self.done:
            self.owner.wait(self)
        if self.error is not None:
            raise self.error
        return self.result


def describe(signature: Signature) -> str:
    """Returns a signature as text, such as "allreduce(float32[4, 3], op=Sum)"."""
    kind, settings, tensors = signature
    parts = [f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]" for dtype, shape in tensors]
    parts += [f"{name}={getattr(value, 'name', value)}" for name, value in settings]
    return f"{kind}({', '.join(parts)})"
