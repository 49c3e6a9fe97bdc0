"""DiLoCo: an outer optimizer makes a step along the average of the ranks' changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.training.low_communication.fragment import Fragment
from ringreduce.training.low_communication.outer import Tensor
from ringreduce.training.low_communication.rounds import Rounds

__all__ = ["DiLoCo"]


class DiLoCo(Rounds):
    """Makes a step of an outer optimizer, SGD with Nesterov momentum, every ``every`` steps.

    The outer gradient is the average, over the ranks, of what their own optimizers (usually AdamW) have subtracted from
    the parameters since the last synchronisation. See Douillard et al., "DiLoCo: Distributed Low-Communication Training
    of Language Models" (2023). With ``lr=1`` and ``momentum=0`` it averages the parameters, as :class:`LocalSGD` does.

    Args:
        parameters: see :class:`Outer`.
        comm: see :class:`Outer`.
        every: see :class:`Outer`.
        lr: the learning rate of the outer optimizer.
        momentum: its Nesterov momentum.
        wire: the format in which outer gradients travel, see :class:`ringreduce.Communicator`. They are added in
            float32.
        adaptive: whether slower ranks make fewer steps, see :class:`LocalSGD`.

    Attributes:
        optimizer: the outer optimizer, a torch.optim.SGD.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        comm: Communicator | None = None,
        *,
        every: int = 500,
        lr: float = 0.7,
        momentum: float = 0.9,
        wire: Wire | None = None,
        adaptive: bool = False,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "wire": wire}
        super().__init__(parameters, comm, every, start=0, adaptive=adaptive, **options)
        self._fragment = Fragment(self.parameters, self.comm, wire, lr, momentum)
        self._average, self.optimizer = self._fragment.average, self._fragment.optimizer

    def _synchronise(self, weight: float) -> None:
        self._fragment.outer_step(self._averaged(self._fragment.outer_gradients(), weight))

    def _last(self) -> list[Tensor]:
        return self._fragment.anchors

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "fragment": self._fragment.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        self._fragment.load_state_dict(saved["fragment"])
