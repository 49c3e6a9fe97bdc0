"""LocalSGD and post-local SGD: the ranks train on their own, and average their parameters now and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.low_communication.average import Average
from ringreduce.training.low_communication.outer import Tensor
from ringreduce.training.low_communication.rounds import Rounds

__all__ = ["LocalSGD"]


class LocalSGD(Rounds):
    """Averages the ranks' parameters every ``every`` steps.

    See Stich, "Local SGD Converges Fast and Communicates Little" (2019). With ``start`` it is post-local SGD: the ranks
    synchronise in each of the first steps, and only then begin to train on their own. See Lin et al., "Don't Use Large
    Mini-Batches, Use Local SGD" (2020). With plain SGD, synchronising in every step is synchronous data parallelism.

    A rank that is always slower than the others makes every round longer, because the others wait for it at the end.
    With ``adaptive`` it makes fewer of the steps, in proportion to its speed, as in Liu et al., "Asynchronous Local-SGD
    Training for Language Modeling" (2024). Skip a step where :attr:`idle` is true::

        if not outer.idle:
            loss(model(x), y).backward()
            optimizer.step()
        outer.step()

    Args:
        parameters: see :class:`Outer`.
        comm: see :class:`Outer`.
        every: see :class:`Outer`.
        start: the number of steps at the start after each of which the parameters are averaged.
        adaptive: whether slower ranks make fewer steps. Speeds are those measured in the round before. In the average a
            rank counts in proportion to its steps.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        comm: Communicator | None = None,
        *,
        every: int = 8,
        start: int = 0,
        adaptive: bool = False,
    ) -> None:
        super().__init__(parameters, comm, every, start=start, adaptive=adaptive)
        self._average = Average(self.parameters, self.comm, wire=None)
        self._kept: list[Tensor] | None = None  # the last average, from the first regroup() on

    def _synchronise(self, weight: float) -> None:
        torch._foreach_copy_(self.parameters, self._averaged(self.parameters, weight))
        if self._kept is not None:
            torch._foreach_copy_(self._kept, self.parameters)

    def _common(self) -> list[Tensor]:
        return self._averaged(self.parameters, weight=1.0)

    def _last(self) -> list[Tensor]:
        if self._kept is None:
            made = max(self.steps - self.start, 0) % self.every
            if made:
                raise ValueError(
                    f"LocalSGD: the first regroup() must follow a synchronisation, not {made} steps after it"
                )
            self._kept = [parameter.detach().clone() for parameter in self.parameters]
        return self._kept

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`Outer.state_dict`. After a :meth:`regroup` it also holds the last average."""
        kept = {} if self._kept is None else {"average": [value.clone() for value in self._kept]}
        return {**super().state_dict(), **kept}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        if self._kept is not None:
            torch._foreach_copy_(self._kept, saved.get("average", self.parameters))
