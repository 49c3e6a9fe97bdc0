"""Parameter servers: workers push gradients and pull parameters (docs/parameter_server.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import Group, Memory, Operations
from ringreduce.studies.plan.strategies.strategy import Strategy, backward, forward
from ringreduce.studies.plan.variation import Variation

__all__ = ["ParameterServer", "StaleParameterServer"]

ADDING = 1.5  # copies that take as long as adding a gradient to another


class ParameterServer(Strategy):
    """ringreduce.ParameterServer with staleness 0: all workers push, the servers step once, and all pull.

    Attributes:
        servers: The number of ranks that only serve. 0: all ranks work, and each serves a shard, too.
        copies: Whether each shard has a copy on the next server.
    """

    title: ClassVar[str] = "parameter server"
    servers: NonNegativeInt = 0
    copies: bool = True

    def workers(self, world: int) -> int:
        workers = world - self.servers
        if workers < 1:
            raise ValueError(f"servers: {self.servers} of {world} ranks leave none to work")
        return workers

    def samples(self, job: Job, world: int) -> int:
        return job.samples * self.accumulation * self.workers(world)

    def _shards(self, world: int) -> int:
        return self.servers or world

    def _copied(self, world: int) -> bool:
        return self.copies and self._shards(world) > 1

    def passes(self, job: Job, steps: Operations) -> None:
        self.local_passes(job, steps)
        forward(job, steps)
        backward(job, steps, 1)  # gradients are put side by side

    def all_messages(
        self, job: Job, world: int, steps: Operations, name: str, after: Sequence[int], **where: Any
    ) -> list[int]:
        """Adds the messages of all workers to all servers, or back. One after the other, they pass the busiest link."""
        kind, nbytes = "all_to_all", float(job.nbytes)
        if self.servers:
            kind = "gather" if name == "push" else "scatter"
            nbytes *= max(self.workers(world) / self.servers, 1.0) * world / (world - 1)
        sent = [steps.exchange(name, kind, nbytes, after, algorithm="direct", **where)]
        if name == "pull" or not self._copied(world):
            return sent
        # A server sends all that it has got to its copy.
        got = job.nbytes * self.workers(world) / self._shards(world)
        far = Group(2, world // 2)
        return [steps.exchange("copy", "broadcast", got, sent, group=far, algorithm="direct", **where)]

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        self.passes(job, steps)
        if world == 1:
            steps.compute("optimizer", "optimizer", job.update_s())
            return steps
        shards = self._shards(world)
        pushed = self.all_messages(job, world, steps, "push", steps.computed)
        added = ADDING * job.nbytes / shards * self.workers(world) / job.copy_rate
        twice = 2 if self._copied(world) else 1
        seconds = twice * (added + job.update_s(1 / shards, 1 / shards))
        updated = steps.compute("servers", "optimizer", seconds, pushed)
        steps.compute("end", "other", 0.0, self.all_messages(job, world, steps, "pull", [updated]))
        return steps

    def memory(self, job: Job, world: int) -> Memory:
        shards = self._shards(world)
        served = (2 if self._copied(world) else 1) / shards
        state = served * job.optimizer.state_bytes * job.elements
        shard = served * (1 + self.workers(world)) * job.nbytes  # values, and a gradient of each worker
        if self.servers:
            worker = Memory(job.nbytes, job.nbytes, 0.0, job.activation_bytes, job.nbytes)
            server = Memory(0.0, 0.0, state, 0.0, shard)
            return max(worker, server, key=lambda one: one.total)
        return Memory(job.nbytes, job.nbytes, state, job.activation_bytes, job.nbytes + shard)


class StaleParameterServer(ParameterServer):
    """ringreduce.ParameterServer with a staleness: the servers step with each gradient as it comes.

    A worker's cycle is its own computation and messages. It is longer if the servers need more time for all workers.

    Attributes:
        staleness: How many steps a worker may be ahead of the slowest.
        overlap: Whether a worker pushes and pulls while it computes.
        shared: Whether free workers take the next batch from a queue, as in ``ParameterServer.batches()``.
    """

    title: ClassVar[str] = "stale parameter server"
    staleness: PositiveInt = 1
    overlap: bool = False
    shared: bool = Field(default=False)

    def build(self, job: Job, world: int) -> Operations:
        steps = Operations()
        if world == 1:
            return super().build(job, world)
        shards, twice = self._shards(world), 2 if self._copied(world) else 1
        update = twice * job.update_s(1 / shards, 1 / shards)  # of one gradient, on all servers at once
        if not self.overlap:
            self.passes(job, steps)
        own: dict[str, Any] = {"group": Group(2, world // 2), "algorithm": "direct"}
        pushed = steps.exchange("push", "broadcast", job.nbytes, steps.computed, **own)
        updated = steps.compute("servers", "optimizer", update, [pushed], "serving")
        pulled = steps.exchange("pull", "broadcast", job.nbytes, [updated], **own)
        if self.overlap:
            self.passes(job, steps)
        # What the servers do for all workers in the same time, this worker included: on links that are not its own.
        where: dict[str, Any] = {"stream": "servers", "stage": 1}
        served = self.all_messages(job, world, steps, "push", (), **where)
        stepped = steps.compute("servers", "optimizer", update * self.workers(world), served, **where)
        served = self.all_messages(job, world, steps, "pull", [stepped], **where)
        steps.compute("end", "other", 0.0, [pulled, *served, *steps.computed])
        return steps

    def slowdown(self, variation: Variation, world: int) -> float:
        workers, steps = self.workers(world), self.staleness + 1
        return variation.balanced(workers, steps) if self.shared else variation.slowest(workers, steps)
