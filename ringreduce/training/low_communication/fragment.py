"""Parameters that are synchronised together by an outer optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.training.low_communication.average import Average
from ringreduce.training.low_communication.outer import Tensor

__all__ = ["Fragment"]


class Fragment:
    """Parameters that are synchronised together.

    Attributes:
        anchors: their values at the last synchronisation, the same on all ranks; float32 for 16-bit parameters.
        optimizer: the outer optimizer, which updates the anchors.
        average: the average of the ranks' outer gradients.
    """

    def __init__(
        self, parameters: Sequence[Tensor], comm: Communicator, wire: Wire | None, lr: float, momentum: float
    ) -> None:
        self.parameters = list(parameters)
        self.anchors = [
            parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for parameter in self.parameters
        ]
        self.optimizer = torch.optim.SGD(self.anchors, lr=lr, momentum=momentum, nesterov=momentum > 0)
        self.average = Average(self.anchors, comm, wire)

    def outer_gradients(self) -> list[Tensor]:
        """Returns by how much the anchors exceed this rank's parameters."""
        return [anchor - parameter for anchor, parameter in zip(self.anchors, self.parameters, strict=True)]

    def outer_step(self, gradients: Sequence[Tensor], mixing: float = 0.0) -> None:
        """Makes a step of the outer optimizer, and lets the parameters continue from the anchors.

        Args:
            gradients: the averages of the ranks' outer gradients.
            mixing: how much of this rank's own parameters is kept, from 0 (nothing) to 1 (all).
        """
        for anchor, gradient in zip(self.anchors, gradients, strict=True):
            anchor.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        for parameter, anchor in zip(self.parameters, self.anchors, strict=True):
            parameter.copy_(anchor.lerp(parameter.to(anchor.dtype), mixing) if mixing else anchor)

    def state_dict(self) -> dict[str, Any]:
        anchors = [anchor.clone() for anchor in self.anchors]
        return {"anchors": anchors, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Raises ValueError if the state is of other parameters."""
        shapes = [tuple(anchor.shape) for anchor in saved["anchors"]]
        own = [tuple(anchor.shape) for anchor in self.anchors]
        if shapes != own:
            number = next(
                i for i, (a, b) in enumerate(zip([*shapes, None], [*own, None], strict=False)) if a != b
            )
            raise ValueError(
                f"saved is of other parameters: parameter {number} of a fragment has the shape "
                f"{dict(enumerate(shapes)).get(number)} in it, and {dict(enumerate(own)).get(number)} here"
            )
        with torch.no_grad():
            torch._foreach_copy_(self.anchors, saved["anchors"])
        # load_state_dict() keeps the tensors that it is given.
        self.optimizer.load_state_dict(deepcopy(saved["optimizer"]))
