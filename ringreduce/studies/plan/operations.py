"""The operations of a step on one rank: computations and collectives, on streams that each do one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["COMPUTE", "Memory", "Operation", "Operations"]

COMPUTE = "compute"


@dataclass(frozen=True)
class Operation:
    """A computation, or a collective.

    Attributes:
        name: What it does, for traces.
        stream: Where it runs, after all earlier operations of that stream.
        after: The numbers of operations that must have ended.
        kind: "forward", "backward", "optimizer", "other" or "communication".
        seconds: The time of a computation on the device of the job's times.
        collective, nbytes: The collective and the size of its whole buffer, in bytes.
    """

    name: str
    stream: str
    after: tuple[int, ...]
    kind: str
    seconds: float = 0.0
    collective: str = ""
    nbytes: int = 0


@dataclass
class Operations:
    """Operations in the order in which a rank begins them."""

    all: list[Operation] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)  # the last computation

    def compute(self, name: str, kind: str, seconds: float, after: Sequence[int] = ()) -> int:
        """Adds a computation, and returns its number."""
        self.all.append(Operation(name, COMPUTE, tuple(after), kind, seconds))
        self.computed = [len(self.all) - 1]
        return self.computed[0]

    def exchange(
        self,
        name: str,
        collective: str,
        nbytes: int,
        after: Sequence[int] = (),
        stream: str = "communication",
    ) -> int:
        """Adds a collective, and returns its number."""
        self.all.append(Operation(name, stream, tuple(after), "communication", 0.0, collective, nbytes))
        return len(self.all) - 1


@dataclass(frozen=True)
class Memory:
    """The bytes that a rank holds, by part.

    Attributes:
        parameters, gradients, optimizer: What their names say.
        activations: What the forward pass keeps for the backward pass.
        buffers: Copies for communication: buckets that are not the gradients themselves, gathered parameters.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float = 0.0

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers
