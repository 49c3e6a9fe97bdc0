"""FSDP2, torch's fully_shard: ZeRO stage 3. Each unit's parameters are gathered when it needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from ringreduce.studies.plan.job import Job, Layer
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.strategy import Strategy

__all__ = ["FSDP2"]


@dataclass(frozen=True)
class Unit:
    """Layers whose parameters are gathered at once."""

    name: str
    layers: list[Layer]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def tensors(self) -> int:
        return sum(len(layer.parameters) for layer in self.layers)


class FSDP2(Strategy):
    """torch's fully_shard on each unit of the model and on the model itself, as its documentation recommends.

    The root's own parameters are gathered before the forward pass, stay until the end of the backward pass, and their
    gradients are scattered last. The gathering of a unit overlaps with the computation of the one before it (torch's
    implicit prefetching forwards, and explicit prefetching backwards). All-gathers and reduce-scatters have a stream
    each, so they may run at the same time. On CPUs, which have no streams, nothing overlaps. A share is copied before
    it is gathered, and the whole unit afterwards; gradients are copied before they are scattered. The optimizer
    updates a share of each parameter, so it has as many tensors as one rank alone. See Zhao et al., "PyTorch FSDP",
    VLDB 2023.

    Attributes:
        reshard: ``reshard_after_forward``: whether units free their parameters after the forward pass.
        prefetch: Whether gathering overlaps with computation. If not, each unit waits for its own all-gather.
    """

    title: ClassVar[str] = "FSDP2"
    reshard: bool = True
    prefetch: bool = True

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        own = job.overhead("fsdp2")
        steps.compute("other", "other", job.other_s + own.step_s)
        scattered: list[int] = []
        for _ in range(self.accumulation):
            scattered += _Pass(self, job, world, steps).scattered
        seconds = job.update_s(1 / world) + job.tensors * own.update_s
        steps.compute("optimizer", "optimizer", seconds, scattered)
        return steps

    def memory(self, job: Job, world: int) -> Memory:
        units, root = _units(job)
        largest = max((unit.nbytes for unit in units if unit.name), default=0)
        held = job.nbytes - root if not self.reshard else 2 * largest
        state = job.optimizer.state_bytes * job.elements / world
        # Gathered: the root, two units of parameters (or all), and two of gradients.
        buffers = (root * 2 + held + 2 * largest) if world > 1 else 0.0
        return Memory(job.nbytes / world, job.nbytes / world, state, job.activation_bytes, buffers)


class _Pass:
    """Adds a forward and a backward pass.

    Attributes:
        scattered: The numbers of the reduce-scatters.
    """

    def __init__(self, strategy: FSDP2, job: Job, world: int, steps: Operations) -> None:
        self._prefetch, self._steps, self._own = strategy.prefetch, steps, job.overhead("fsdp2")
        self._gathered, self._scattered = (
            part / job.copy_rate for part in (1 + 1 / world, 1)
        )  # seconds a byte
        self.scattered: list[int] = []
        units, root = _units(job)
        self._whole = [self._gather("root", root, steps.computed)] if root else []
        self._walk(units, "forward", True)
        self._walk(units[::-1], "backward", strategy.reshard)
        if root:
            self._scatter("root", root, steps.computed)

    def _walk(self, units: list[Unit], kind: str, gathers: bool) -> None:
        """Adds the computations of all units in one direction."""
        before = ended = self._steps.computed
        for unit in units:
            ready, own = list(self._whole), 0.0
            if unit.name:
                own = (self._own.unit_s + self._own.tensor_s * unit.tensors) / 2
                own += unit.nbytes * self._scattered if kind == "backward" else 0.0
            if unit.name and gathers:
                # With prefetching, a unit is gathered while the one before it computes.
                ready.append(self._gather(unit.name, unit.nbytes, before if self._prefetch else ended))
                own += unit.nbytes * self._gathered
            before = ended
            for layer in unit.layers if kind == "forward" else unit.layers[::-1]:
                seconds = layer.forward_s if kind == "forward" else layer.backward_s
                ended = [self._steps.compute(layer.name, kind, seconds + own, ready)]
                ready, own = [], 0.0
            if unit.name and kind == "backward":
                self._scatter(unit.name, unit.nbytes, ended)

    def _gather(self, name: str, nbytes: int, after: Sequence[int]) -> int:
        return self._steps.exchange(name, "all_gather", nbytes, after, "gathering", blocks=True)

    def _scatter(self, name: str, nbytes: int, after: Sequence[int]) -> None:
        self.scattered.append(
            self._steps.exchange(name, "reduce_scatter", nbytes, after, "scattering", blocks=True)
        )


def _units(job: Job) -> tuple[list[Unit], int]:
    """Returns the units in the order of the forward pass, and the bytes of the root's own parameters."""
    units = [Unit(name, list(layers)) for name, layers in groupby(job.layers, key=lambda layer: layer.unit)]
    return units, sum(unit.nbytes for unit in units if not unit.name)
