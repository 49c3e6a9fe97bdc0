"""FSDP2, torch's fully_shard: ZeRO stage 3. Each unit's parameters are gathered when it needs them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from pydantic import NonNegativeFloat

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
        return sum(parameter.nbytes for layer in self.layers for parameter in layer.parameters)


class FSDP2(Strategy):
    """torch's fully_shard on each unit of the model and on the model itself, as its documentation recommends.

    The root's own parameters are gathered before the forward pass, stay until the end of the backward pass, and their
    gradients are scattered last. The gathering of a unit overlaps with the computation of the one before it (torch's
    implicit prefetching forwards, and explicit prefetching backwards). All-gathers and reduce-scatters have a stream
    each, so they may run at the same time. Copies of a share and of the whole unit surround each of them. See Zhao et
    al., "PyTorch FSDP", VLDB 2023.

    Attributes:
        reshard: ``reshard_after_forward``: whether units free their parameters after the forward pass.
        prefetch: Whether gathering overlaps with computation. If not, each unit waits for its own all-gather.
        unit_us: The microseconds of the processor for a unit's hooks in both passes, if the computation waits for it:
            about 350 on a CPU. A GPU lags behind the processor, so that this costs nothing.
    """

    title: ClassVar[str] = "FSDP2"
    reshard: bool = True
    prefetch: bool = True
    unit_us: NonNegativeFloat = 0.0

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        steps.compute("other", "other", job.other_s)
        units, root = _units(job)
        scattered: list[int] = []
        for _ in range(self.accumulation):
            scattered += self._pass(steps, units, root, (1 + 1 / world) / job.copy_rate)
        steps.compute("optimizer", "optimizer", job.update_s(1 / world), scattered)
        return steps

    def _pass(self, steps: Operations, units: list[Unit], root: int, copy_s: float) -> list[int]:
        whole = [steps.exchange("root", "all_gather", root, steps.computed, "gathering")] if root else []
        self._walk(steps, units, "forward", True, whole, copy_s)
        scattered = self._walk(steps, units[::-1], "backward", self.reshard, whole, copy_s)
        if root:
            scattered.append(steps.exchange("root", "reduce_scatter", root, steps.computed, "scattering"))
        return scattered

    def _walk(
        self, steps: Operations, units: list[Unit], kind: str, gathers: bool, whole: list[int], copy_s: float
    ) -> list[int]:
        """Adds the computations of all units in one direction. Returns the numbers of the reduce-scatters.

        copy_s: the seconds for each byte that is gathered or scattered.
        """
        scattered: list[int] = []
        before, ended = steps.computed, steps.computed
        for unit in units:
            ready = list(whole)
            if unit.name and gathers:
                # With prefetching, a unit is gathered while the one before it computes.
                free = before if self.prefetch else ended
                ready.append(steps.exchange(unit.name, "all_gather", unit.nbytes, free, "gathering"))
            before = ended
            exchanges = gathers + (kind == "backward")
            own = exchanges * unit.nbytes * copy_s + self.unit_us * 1e-6 / 2 if unit.name else 0.0
            for layer in unit.layers if kind == "forward" else unit.layers[::-1]:
                seconds = layer.forward_s if kind == "forward" else layer.backward_s
                ended = [steps.compute(layer.name, kind, seconds + own, ready)]
                ready, own = [], 0.0
            if unit.name and kind == "backward":
                scattered.append(
                    steps.exchange(unit.name, "reduce_scatter", unit.nbytes, ended, "scattering")
                )
        return scattered

    def memory(self, job: Job, world: int) -> Memory:
        units, root = _units(job)
        largest = max((unit.nbytes for unit in units if unit.name), default=0)
        held = job.nbytes - root if not self.reshard else 2 * largest
        state = job.optimizer.state_bytes * job.elements / world
        # Gathered: the root, two units of parameters (or all), and two of gradients.
        buffers = (root * 2 + held + 2 * largest) if world > 1 else 0.0
        return Memory(job.nbytes / world, job.nbytes / world, state, job.activation_bytes, buffers)


def _units(job: Job) -> tuple[list[Unit], int]:
    """Returns the units in the order of the forward pass, and the bytes of the root's own parameters."""
    units = [Unit(name, list(layers)) for name, layers in groupby(job.layers, key=lambda layer: layer.unit)]
    return units, sum(unit.nbytes for unit in units if not unit.name)
