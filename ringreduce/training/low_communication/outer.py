"""The parts that all methods share: the agreement between the ranks, the count of steps, and the saved state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.training.foundation.agreement import check_same, check_whole, kind_of
from ringreduce.training.foundation.broadcast import Broadcast
from ringreduce.training.foundation.exchange import WIRES
from ringreduce.training.foundation.timings import StepTimings

__all__ = ["Outer", "Tensor"]

Tensor = Any  # torch.Tensor


class Outer(ABC):
    """The base class of the methods. Call :meth:`step` after each step of the optimizer, on every rank.

    At the start, all ranks get rank 0's parameters. Buffers, such as the running statistics of batch norm, are not
    synchronised, nor is the state of the optimizer.

    Args:
        parameters: the model's parameters, the same on every rank. Those that need no gradient are left alone.
        comm: the group. None takes :func:`ringreduce.world`.
        every: the number of local steps between two synchronisations, H in the papers.

    Attributes:
        steps: the number of steps made.
        bytes_sent: the bytes that this rank has sent to synchronise parameters: 2 (N-1)/N S in an all-reduce of S
            bytes, without headers.
        timings: the exchanges and waits of the last step, a :class:`ringreduce.training.data_parallel.StepTimings`.
        sent: what this rank has sent whose average is not back; :meth:`regroup` sends it again.

    Raises:
        ValueError: an argument is invalid, or no parameter needs a gradient.
        Error: the ranks' parameters or arguments differ. The message names the first difference.
    """

    def __init__(
        self, parameters: Iterable[Tensor], comm: Communicator | None, every: int, **options: Any
    ) -> None:
        self.comm = chosen(comm)
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.every = every
        self.steps = self.bytes_sent = 0
        self.timings = StepTimings()
        self.sent: list[Any] = []
        own = {name: repr(value) for name, value in {"every": every, **options}.items()}
        own |= {f"parameter {number}": kind_of(p) for number, p in enumerate(self.parameters)}
        self._arguments = own
        check_same(self.comm, own, f"{type(self).__name__}: the ranks' parameters or arguments")
        check_whole(every, "every", 1)
        wire = options.get("wire")
        self._require("wire", wire, wire in WIRES, f"one of {WIRES}")
        if not self.parameters:
            raise ValueError("parameters: none of them needs a gradient")
        Broadcast(self.comm)([parameter.data for parameter in self.parameters], root=0)

    @staticmethod
    def _require(name: str, value: object, met: bool, condition: str) -> None:
        if not met:
            raise ValueError(f"{name} must be {condition}, not {value!r}")

    @property
    def idle(self) -> bool:
        """Whether this rank is to skip the next step, because it is slow. See ``adaptive`` of :class:`LocalSGD`."""
        return False

    @property
    def left(self) -> int:
        """The number of steps to the end of the round: to the next synchronisation, of streaming's first fragment."""
        return self.every - self.steps % self.every

    @abstractmethod
    def step(self) -> None:
        """Counts a step, and synchronises the parameters if it is time. Every rank must call it.

        Raises:
            Error: the ranks have made different numbers of steps. Every rank raises it.
        """

    # --- the common model ------------------------------------------------------------------------------------

    @abstractmethod
    def _last(self) -> list[Tensor]:
        """Returns the parameters' values after the last synchronisation, the same on all ranks."""

    def _common(self) -> list[Tensor]:
        """Returns the parameters' values that all ranks agree on. Every rank calls it."""
        return self._last()

    @contextmanager
    def common(self) -> Iterator[None]:
        """Returns a context in which the parameters are the same on all ranks, for example for an evaluation.

        They are the parameters of the last synchronisation, or for :class:`LocalSGD` the average of the ranks'. After
        it, each rank has its own again. Every rank must enter the context.
        """
        with torch.no_grad():
            own = [parameter.clone() for parameter in self.parameters]
            torch._foreach_copy_(self.parameters, self._common())
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, own)

    # --- other ranks -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def regroup(self, comm: Communicator) -> None:
        """Continues with the ranks of another group, from the parameters of the last synchronisation.

        Every rank of the group must call it, with the same state (:meth:`common_state`). Local steps since the last
        synchronisation are lost. The state of the ranks' own optimizers stays as it is. Adaptive ranks begin again with
        equal numbers of steps. :mod:`ringreduce.elastic` calls it when ranks are lost or join.

        Raises:
            ValueError: the method cannot continue with other ranks. The message says why.
        """
        self.comm = comm
        torch._foreach_copy_(self.parameters, self._last())

    def take(self, sent: Sequence[list[Any]]) -> None:
        """Adopts what the ranks of a checkpoint had :attr:`sent`. :meth:`regroup` must follow.

        Args:
            sent: that of each of them, whatever their number.
        """

    def described(self) -> list[str]:
        """Returns the arguments and the kinds of the parameters, as text: what must be the same on all ranks."""
        return [f"{name}: {value}" for name, value in self._arguments.items()]

    # --- saving ----------------------------------------------------------------------------------------------

    def common_state(self) -> dict[str, Any]:
        """Returns :meth:`state_dict` without averages in flight, and so without waiting for other ranks."""
        return self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, of tensors, numbers, strings and containers of these.

        It is the same on all ranks. It holds neither the parameters nor the state of the ranks' own optimizers, which
        differ between the ranks: each rank must save its own.
        """
        return {"method": type(self).__name__, "steps": self.steps}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Loads a state that :meth:`state_dict` returned, on this or another number of ranks.

        Raises:
            ValueError: the state is of another method or of other parameters.
        """
        if saved.get("method") != type(self).__name__:
            raise ValueError(f"saved is the state of {saved.get('method')}, not of {type(self).__name__}")
        self.steps = int(saved["steps"])
