"""The operations of a step on one rank: computations and collectives, on streams that each do one thing at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["COMPUTE", "Group", "Memory", "Operation", "Operations"]

COMPUTE = "compute"


@dataclass(frozen=True)
class Group:
    """Ranks that communicate with each other, while all other ranks do the same in groups of their own.

    Attributes:
        size: The number of ranks in a group.
        stride: The difference between the numbers of two neighbours.
    """

    size: int
    stride: int = 1


@dataclass(frozen=True)
class Operation:
    """A computation, or a collective.

    Attributes:
        name: What it does, for traces.
        stream: Where it runs, after all earlier operations of that stream.
        after: The numbers of operations that must have ended.
        kind: "forward", "backward", "optimizer", "compression", "other" or "communication".
        seconds: The time of a computation on the device of the job's times.
        collective, nbytes: The collective and the size of its whole buffer, in bytes.
        times: How many of these collectives follow one another.
        group: The ranks of the collective. None means all ranks.
        algorithm: The collective's algorithm, "auto", or "coded": what ``auto`` picks for values in a wire format.
        stage: The stage of a pipeline whose ranks do it. Stages share neither cores nor links.
        blocks: Whether the computation waits for it on devices that have no streams: CPUs.
    """

    name: str
    stream: str
    after: tuple[int, ...]
    kind: str
    seconds: float = 0.0
    collective: str = ""
    nbytes: int = 0
    times: int = 1
    group: Group | None = None
    algorithm: str = "auto"
    stage: int = 0
    blocks: bool = False


@dataclass
class Operations:
    """Operations in the order in which a rank begins them."""

    all: list[Operation] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)  # the last computation

    def compute(
        self, name: str, kind: str, seconds: float, after: Sequence[int] = (), stream: str = COMPUTE, stage: int = 0
    ) -> int:  # fmt: skip
        """Adds a computation, and returns its number."""
        self.all.append(Operation(name, stream, tuple(after), kind, seconds, stage=stage))
        number = len(self.all) - 1
        if stream == COMPUTE:
            self.computed = [number]
        return number

    def exchange(
        self, name: str, collective: str, nbytes: float, after: Sequence[int] = (), stream: str = "communication",
        **more: Any,
    ) -> int:  # fmt: skip
        """Adds a collective, and returns its number. ``more`` are further attributes of the operation."""
        size = math.ceil(nbytes)
        self.all.append(Operation(name, stream, tuple(after), "communication", 0.0, collective, size, **more))
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
