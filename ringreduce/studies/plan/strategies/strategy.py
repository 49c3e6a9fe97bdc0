"""What all strategies of data parallelism share: passes, buckets, and the optimizer's step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import PositiveInt

from ringreduce.settings import Table
from ringreduce.studies.plan.job import Job, Parameter
from ringreduce.studies.plan.operations import Memory, Operation, Operations
from ringreduce.studies.plan.variation import Variation

__all__ = ["MB", "Bucket", "Phase", "Strategy", "backward", "buckets_of", "forward", "replicated", "verdict"]

MB = 1 << 20
VERDICT = (
    3  # bytes by which ranks agree that a backward pass succeeded: ringreduce.training.foundation.agreement
)


class Bucket(Table):
    """Gradients that travel together.

    Attributes:
        nbytes: Their bytes.
        first, last: The numbers of the layers that compute the first and the last of them.
        parameters: Their parameters.
    """

    nbytes: int
    first: int
    last: int
    parameters: list[Parameter]


@dataclass(frozen=True)
class Phase:
    """Steps of one kind.

    Attributes:
        operations: The operations of these steps.
        steps: The number of these steps, each with an update of the parameters.
        times: How often they follow one another before steps of another kind.
    """

    operations: Sequence[Operation]
    steps: int = 1
    times: float = 1.0


class Strategy(Table):
    """A strategy.

    Attributes:
        accumulation: The number of forward and backward passes in a step. Only the last one exchanges gradients.
    """

    title: ClassVar[str]
    accumulation: PositiveInt = 1

    @abstractmethod
    def build(self, job: Job, world: int) -> Operations:
        """Returns the operations of a step of one rank."""

    @abstractmethod
    def memory(self, job: Job, world: int) -> Memory:
        """Returns the bytes that a rank holds."""

    def phases(self, job: Job, world: int) -> list[Phase]:
        """Returns the kinds of steps in a round, those with most communication last."""
        return [Phase(self.build(job, world).all)]

    def samples(self, job: Job, world: int) -> int:
        """Returns what all ranks process in a step."""
        return job.samples * self.accumulation * world

    def slowdown(self, variation: Variation, world: int) -> float:
        """Returns how much longer than the mean of the ranks a step computes, because ranks wait for others."""
        return variation.slowest(world)

    def local_passes(self, job: Job, steps: Operations, own_s: float = 0.0) -> None:
        """Adds what a step does before its last pass. own_s: the seconds of the strategy's own code for a step."""
        steps.compute("other", "other", job.other_s + own_s)
        for _ in range(self.accumulation - 1):
            forward(job, steps)
            backward(job, steps)


def forward(job: Job, steps: Operations) -> None:
    for layer in job.layers:
        steps.compute(layer.name, "forward", layer.forward_s)


def backward(
    job: Job, steps: Operations, copies: int = 0, tensor_s: float = 0.0,
    before: Mapping[int, Callable[[], Sequence[int]]] | None = None, then: Callable[[int, int], None] | None = None,
) -> None:  # fmt: skip
    """Adds a backward pass.

    Args:
        copies: How often each gradient is copied.
        tensor_s: The seconds for each gradient besides copies.
        before: For some layers, a function that returns what they wait for.
        then: Called after each layer with its number and that of its operation.
    """
    for number in reversed(range(len(job.layers))):
        layer = job.layers[number]
        own = copies * layer.nbytes / job.copy_rate + tensor_s * len(layer.parameters)
        after = before[number]() if before and number in before else ()
        done = steps.compute(layer.name, "backward", layer.backward_s + own, after)
        if then is not None:
            then(number, done)


def verdict(steps: Operations, stream: str) -> int:
    """Adds the ranks' agreement that the backward pass succeeded, and returns its number."""
    return steps.exchange("verdict", "all_reduce", VERDICT, steps.computed, stream)


def buckets_of(job: Job, assigned: Sequence[Sequence[int]]) -> list[Bucket]:
    """Returns buckets from the positions of their gradients in the order in which these come."""
    arrivals: list[tuple[int, Parameter]] = list(job.arrivals())
    return [
        Bucket(
            nbytes=sum(arrivals[place][1].nbytes for place in places),
            first=arrivals[places[0]][0],
            last=arrivals[places[-1]][0],
            parameters=[arrivals[place][1] for place in places],
        )
        for places in assigned
    ]


def replicated(job: Job, buffers: float = 0.0) -> Memory:
    """Returns the memory of a rank that holds everything."""
    state = job.optimizer.state_bytes * job.elements
    return Memory(job.nbytes, job.nbytes, state, job.activation_bytes, buffers)
