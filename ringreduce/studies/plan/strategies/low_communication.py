"""Strategies whose ranks train on their own, and synchronise after many steps (docs/training.md#low-communication)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.compressed import BF16, FP8, FP16, Int8, Wire
from ringreduce.studies.plan.strategies.strategy import Phase, Strategy, backward, forward, replicated
from ringreduce.studies.plan.variation import Variation

__all__ = ["DiLoCo", "LocalSGD", "StreamingDiLoCo"]

WIRES: dict[str, type[Wire]] = {"bf16": BF16, "fp16": FP16, "int8": Int8, "fp8": FP8}
FACTS = 16  # bytes that each rank tells the others at a synchronisation
ANCHOR = 4  # bytes of an element of an anchor
# Copies of all anchors that take as long as what precedes an average (a difference, and a copy into a bucket), and what
# follows it (the outer optimizer's step, and a copy into the parameters).
BEFORE, AFTER = 2.5, 6.5


class _Local(Strategy):
    """Steps without communication."""

    every: PositiveInt

    def local_step(self, job: Job, steps: Operations) -> None:
        """Adds a step of the rank's own optimizer."""
        self.local_passes(job, steps)
        forward(job, steps)
        backward(job, steps)
        steps.compute("optimizer", "optimizer", job.update_s())

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        self.local_step(job, steps)
        return steps

    def rest(self, job: Job, world: int, times: float) -> list[Phase]:
        return [Phase(self.build(job, world).all, times=times)] if times > 0 else []


class LocalSGD(_Local):
    """ringreduce.low_communication.LocalSGD.

    Attributes:
        every, adaptive: As for the class.
    """

    title: ClassVar[str] = "LocalSGD"
    every: PositiveInt = 8
    adaptive: bool = False

    def phases(self, job: Job, world: int) -> list[Phase]:
        steps = self.build(job, world)
        if world > 1:
            self.synchronise(job, world, steps)
        return [*self.rest(job, world, self.every - 1), Phase(steps.all)]

    def synchronise(self, job: Job, world: int, steps: Operations) -> None:
        own = job.tensors * job.overhead("local_sgd").update_s
        filled = steps.compute("average", "optimizer", own + job.nbytes / job.copy_rate, steps.computed)
        told = steps.exchange("steps", "all_gather", FACTS * world, [filled])
        averaged = steps.exchange("average", "all_reduce", job.nbytes, [told])
        steps.compute("average", "optimizer", job.nbytes / job.copy_rate, [averaged])

    def slowdown(self, variation: Variation, world: int) -> float:
        return (variation.balanced if self.adaptive else variation.slowest)(world, self.every)

    def memory(self, job: Job, world: int) -> Memory:
        return replicated(job, job.nbytes if world > 1 else 0.0)


class DiLoCo(LocalSGD):
    """ringreduce.low_communication.DiLoCo.

    Attributes:
        every, wire, adaptive: As for the class.
    """

    title: ClassVar[str] = "DiLoCo"
    every: PositiveInt = 500
    wire: Literal["bf16", "fp16", "int8", "fp8"] | None = None

    def synchronise(self, job: Job, world: int, steps: Operations) -> None:
        self.outer_step(job, world, steps, 1.0)

    def begin_average(
        self, job: Job, world: int, steps: Operations, share: float, after: Sequence[int]
    ) -> list[int]:
        """Adds the average of a share of all parameters, which does not wait for later steps."""
        elements = job.elements * share
        filled = steps.compute(
            "outer gradients", "optimizer", BEFORE * ANCHOR * elements / job.copy_rate, after
        )
        told = steps.exchange("steps", "all_gather", FACTS * world, [filled])
        if self.wire is None:
            return [steps.exchange("outer gradients", "all_reduce", ANCHOR * elements, [told])]
        seconds = job.coder(self.wire).element_s * elements
        return [
            steps.compute("outer gradients code", "compression", seconds, [told], "coding"),
            steps.exchange(
                "outer gradients", "all_reduce", WIRES[self.wire].element_bytes * elements, [told], algorithm="coded"
            ),
        ]  # fmt: skip

    def end_average(self, job: Job, steps: Operations, share: float, averaged: Sequence[int]) -> None:
        """Adds the outer optimizer's step."""
        own = job.tensors * share * job.overhead("diloco").update_s
        seconds = own + AFTER * ANCHOR * job.elements * share / job.copy_rate
        steps.compute("outer optimizer", "optimizer", seconds, averaged)

    def outer_step(self, job: Job, world: int, steps: Operations, share: float) -> None:
        averaged = self.begin_average(job, world, steps, share, steps.computed)
        self.end_average(job, steps, share, averaged)

    def memory(self, job: Job, world: int) -> Memory:
        # Anchors, outer momenta, and outer gradients before and in their bucket.
        return replicated(job, 4.0 * ANCHOR * job.elements if world > 1 else 0.0)


class StreamingDiLoCo(DiLoCo):
    """ringreduce.low_communication.StreamingDiLoCo.

    Attributes:
        every, wire: As for the class.
        fragments: The number of fragments, of about the same size.
        overlap: The steps in which a fragment's outer gradients travel. If another fragment follows sooner, those until
            then.
    """

    title: ClassVar[str] = "streaming DiLoCo"
    every: PositiveInt = 100
    fragments: PositiveInt = 4
    overlap: NonNegativeInt = 1
    adaptive: Literal[False] = Field(default=False)

    def phases(self, job: Job, world: int) -> list[Phase]:
        between, share = self.every / self.fragments, 1 / self.fragments
        overlap = min(self.overlap, max(int(between), 1))
        steps = Operations()
        if world == 1:
            return self.rest(job, world, 1.0)
        if not overlap:
            self.local_step(job, steps)
            self.outer_step(job, world, steps, share)
            return [*self.rest(job, world, between - 1), Phase(steps.all)]
        averaged = self.begin_average(job, world, steps, share, ())
        for _ in repeat(None, overlap):
            self.local_step(job, steps)
        self.end_average(job, steps, share, [*averaged, *steps.computed])
        return [*self.rest(job, world, between - overlap), Phase(steps.all, steps=overlap)]
