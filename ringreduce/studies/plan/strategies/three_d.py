"""Tensor, pipeline and data parallelism at once (Narayanan et al., "Megatron-LM", SC 2021)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from ringreduce.studies.plan.job import Job, Layer
from ringreduce.studies.plan.operations import COMPUTE, Group, Memory, Operations
from ringreduce.studies.plan.strategies.strategy import Strategy

__all__ = ["ThreeD"]


class ThreeD(Strategy):
    """Each layer is divided among ``tensor`` ranks, the layers into ``stages``, and the batch among the other ranks.

    Neighbouring ranks share a layer, then come the ranks that share a batch, and then the stages. A layer's ranks add
    up their results in the forward pass and gradients in the backward pass, and nothing hides this. Gradients are
    averaged after the last backward pass of a stage.

    Attributes:
        tensor: The ranks that share each layer.
        stages: The stages of the pipeline.
        microbatches: The passes of a step, each of the job's samples.
        schedule: "gpipe": all forward passes come first (Huang et al., NeurIPS 2019). "1f1b": a stage makes backward
            passes as soon as it can, so that it keeps fewer activations (Narayanan et al., PipeDream-Flush, 2021).
        zero: 1 divides the optimizer's state among the ranks that share a batch.
    """

    title: ClassVar[str] = "3D"
    tensor: PositiveInt = 1
    stages: PositiveInt = 1
    microbatches: PositiveInt = 8
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    zero: int = Field(default=0, ge=0, le=1)
    accumulation: int = Field(default=1, ge=1, le=1)

    def _copies(self, world: int) -> int:
        """Returns the number of ranks that share a batch."""
        model = self.tensor * self.stages
        if world % model:
            raise ValueError(f"3d: {world} ranks are not a multiple of tensor x stages, {model}")
        return world // model

    def samples(self, job: Job, world: int) -> int:
        return job.samples * self.microbatches * self._copies(world)

    def parts(self, job: Job) -> list[list[Layer]]:
        """Returns the layers of each stage, cut where the times of the stages are most alike."""
        if self.stages > len(job.layers):
            raise ValueError(
                f"3d: {self.stages} stages need as many layers, and the job has {len(job.layers)}"
            )
        if self.tensor * self.stages > 1 and not any(layer.output_bytes for layer in job.layers):
            raise ValueError("3d: the job's layers lack output_bytes, which ranks that share them exchange")
        times = [layer.forward_s + layer.backward_s for layer in job.layers]
        parts: list[list[Layer]] = [[] for _ in range(self.stages)]
        passed, stage = 0.0, 0
        for number, layer in enumerate(job.layers):
            left, wanted = len(job.layers) - number, sum(times) * (stage + 1) / self.stages
            is_full = passed + times[number] / 2 > wanted and bool(parts[stage])
            if stage + 1 < self.stages and (is_full or left < self.stages - stage):
                stage += 1
            parts[stage].append(layer)
            passed += times[number]
        return parts

    def build(self, job: Job, world: int) -> Operations:
        return _Pipeline(self, job, world, self._copies(world)).steps

    def memory(self, job: Job, world: int) -> Memory:
        copies, found = self._copies(world), []
        for stage, layers in enumerate(self.parts(job)):
            elements = (
                sum(parameter.numel for layer in layers for parameter in layer.parameters) / self.tensor
            )
            nbytes = sum(layer.nbytes for layer in layers) / self.tensor
            kept = (
                self.microbatches if self.schedule == "gpipe" else min(self.stages - stage, self.microbatches)
            )
            activations = kept * sum(layer.activation_bytes for layer in layers) / self.tensor
            state = job.optimizer.state_bytes * elements / (copies if self.zero else 1)
            found.append(Memory(nbytes, nbytes, state, activations))
        return max(found, key=lambda one: one.total)


class _Pipeline:
    """Adds the operations of all stages."""

    def __init__(self, strategy: ThreeD, job: Job, world: int, copies: int) -> None:
        self.strategy, self.job, self.copies = strategy, job, copies
        self.steps = Operations()
        self._parts = strategy.parts(job)
        self._layer = Group(strategy.tensor)
        self._batch = Group(copies, strategy.tensor)
        self._neighbours = Group(2, strategy.tensor * copies)
        self._done: dict[tuple[str, int, int], int] = {}  # by direction, stage and microbatch
        self.steps.compute("other", "other", job.other_s, stream=f"{COMPUTE} 0")
        self._passes()
        for stage in range(strategy.stages):
            self._update(stage)

    def _passes(self) -> None:
        orders = [list(self._order(stage)) for stage in range(self.strategy.stages)]
        while any(orders):
            for stage, order in enumerate(orders):
                while order and self._is_ready(stage, *order[0]):
                    self._pass(stage, *order.pop(0))

    def _order(self, stage: int) -> Iterator[tuple[str, int]]:
        """Yields the passes of a stage: the direction and the microbatch."""
        count = self.strategy.microbatches
        ahead = count if self.strategy.schedule == "gpipe" else min(self.strategy.stages - 1 - stage, count)
        for number in range(count + ahead):
            if number < count:
                yield "forward", number
            if number >= ahead:
                yield "backward", number - ahead

    def _before(self, stage: int, direction: str) -> int:
        return stage - 1 if direction == "forward" else stage + 1

    def _is_ready(self, stage: int, direction: str, microbatch: int) -> bool:
        before = self._before(stage, direction)
        return not 0 <= before < self.strategy.stages or (direction, before, microbatch) in self._done

    def _pass(self, stage: int, direction: str, microbatch: int) -> None:
        steps, layers, stream = self.steps, self._parts[stage], f"{COMPUTE} {stage}"
        before = direction, self._before(stage, direction), microbatch
        waits = [self._done[before]] if before in self._done else []
        seconds = sum(layer.forward_s if direction == "forward" else layer.backward_s for layer in layers)
        name = f"stage {stage}, microbatch {microbatch}"
        last = steps.compute(name, direction, seconds / self.strategy.tensor, waits, stream, stage)
        if self.strategy.tensor > 1:
            for nbytes, times in Counter(
                layer.output_bytes for layer in layers if layer.output_bytes
            ).items():
                last = steps.exchange(
                    name, "all_reduce", nbytes, [last], stream, times=times, group=self._layer, stage=stage
                )
        to = stage + 1 if direction == "forward" else stage - 1
        if 0 <= to < self.strategy.stages:
            boundary = layers[-1] if direction == "forward" else self._parts[to][-1]
            last = steps.exchange(
                name, "broadcast", boundary.output_bytes / self.strategy.tensor, [last], f"{direction} {stage}",
                group=self._neighbours, algorithm="direct", stage=stage,
            )  # fmt: skip
        self._done[direction, stage, microbatch] = last

    def _update(self, stage: int) -> None:
        steps, layers, stream = self.steps, self._parts[stage], f"{COMPUTE} {stage}"
        nbytes = sum(layer.nbytes for layer in layers) / self.strategy.tensor
        elements = sum(parameter.numel for layer in layers for parameter in layer.parameters)
        tensors = sum(len(layer.parameters) for layer in layers)
        divided = self.strategy.zero > 0
        share = elements / self.job.elements / self.strategy.tensor / (self.copies if divided else 1)
        kind = "reduce_scatter" if divided else "all_reduce"
        name = f"stage {stage}"
        more: dict[str, Any] = {"stream": stream, "group": self._batch, "stage": stage}
        if nbytes:
            steps.exchange(f"{name} gradients", kind, nbytes, (), **more)
        seconds = self.job.update_s(share, tensors / self.job.tensors / (self.copies if divided else 1))
        updated = steps.compute(name, "optimizer", seconds, (), stream, stage)
        if divided and nbytes:
            steps.exchange(f"{name} parameters", "all_gather", nbytes, [updated], **more)
