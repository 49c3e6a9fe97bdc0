"""Predicts a step: how long it takes with a strategy on a cluster, what bounds it, and what would make it faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringreduce.studies.plan.cluster import Change, Cluster, Exchange
from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.operations import COMPUTE, Group, Memory, Operation
from ringreduce.studies.plan.step import Demand, Timed, chain, run
from ringreduce.studies.plan.strategies import Phase, Strategy
from ringreduce.studies.simulate import Graph, Network, Sites

__all__ = ["Prediction", "Simulations", "predict", "sensitivity"]

CORE, LINK = "core", "link"


class Simulations:
    """Collectives on a cluster, each simulated once.

    Args:
        change: Returns the network to simulate in place of the cluster's.
    """

    def __init__(self, cluster: Cluster, change: Change | None = None) -> None:
        self.cluster, self._change = cluster, change
        self._known: dict[tuple[Any, ...], Exchange] = {}

    def __call__(
        self, collective: str, nbytes: int, world: int, group: Group | None = None, algorithm: str = "auto"
    ) -> Exchange:
        size = group.size if group else world
        nbytes = -(-nbytes // size) * size
        key = collective, nbytes, world, group, algorithm
        if key not in self._known:
            self._known[key] = self.cluster.exchange(
                collective, nbytes, world, self._change, group, algorithm
            )
        return self._known[key]


@dataclass(frozen=True)
class Prediction:
    """A step of one rank, predicted. All ranks do the same at the same time.

    If the steps of a strategy differ, figures are means over them, and ``timeline`` is that of a step with
    communication.

    Attributes:
        strategy, world: The strategy, and the number of ranks.
        seconds: The time of the step.
        compute_s: The time of its computations alone.
        causes: Seconds by cause, along the chain of operations that the end of the step waited for. They add up to
            ``seconds``. Computations are "forward", "backward", "optimizer" or "other"; for the causes of collectives
            see :class:`ringreduce.simulate.Outcome`.
        samples: What all ranks process in the step.
        one_rank: Samples per second of one rank that trains alone.
        memory: The bytes that a rank holds.
        link_bytes: The bytes that leave the busiest host through its link in the step.
        price: The price of a million samples.
        fits: Whether the memory of a rank suffices.
        timeline: All operations with their times.
    """

    strategy: Strategy
    world: int
    seconds: float
    compute_s: float
    causes: Mapping[str, float]
    samples: int
    one_rank: float
    memory: Memory
    link_bytes: float
    price: float
    fits: bool
    timeline: Sequence[Timed]

    @property
    def rate(self) -> float:
        """Samples per second of all ranks."""
        return self.samples / self.seconds

    @property
    def efficiency(self) -> float:
        """The rate of a rank, relative to one that trains alone."""
        return self.rate / self.world / self.one_rank

    @property
    def exposed(self) -> float:
        """The seconds that the step takes in addition to its computations."""
        return self.seconds - self.compute_s

    @property
    def bound(self) -> str:
        """The causes that take most of the step, and their shares. Forward and backward passes count together."""
        shares = {name.replace("_", " "): seconds / self.seconds for name, seconds in self.causes.items()}
        shares["compute"] = shares.pop("forward", 0.0) + shares.pop("backward", 0.0)
        largest = sorted(shares.items(), key=lambda item: -item[1])[:2]
        return ", ".join(f"{100 * share:.0f} % {name}" for name, share in largest if share >= 0.005)


def predict(
    job: Job, cluster: Cluster, strategy: Strategy, world: int, simulations: Simulations | None = None
) -> Prediction:
    """Predicts a step.

    Args:
        job: The job.
        cluster: The cluster.
        strategy: The strategy.
        world: The number of ranks.
        simulations: The collectives simulated so far, to share them between predictions.

    Raises:
        ValueError: The cluster has no such number of ranks.
    """
    find = simulations or Simulations(cluster)
    slowest = strategy.slowdown(cluster.variation, world) if cluster.variation else 1.0
    round_ = [_timed(phase, job, cluster, slowest, find, world) for phase in strategy.phases(job, world)]
    steps = sum(one.phase.times * one.phase.steps for one in round_)

    def mean(of: Callable[[_Round], float]) -> float:
        return sum(one.phase.times * of(one) for one in round_) / steps

    causes: dict[str, float] = defaultdict(float)
    for one in round_:
        for cause, part in one.causes.items():
            causes[cause] += one.phase.times * part / steps
    seconds = mean(lambda one: one.seconds)
    memory, limit = strategy.memory(job, world), cluster.device.memory
    samples = strategy.samples(job, world)
    return Prediction(
        strategy=strategy, world=world, seconds=seconds, samples=samples,
        compute_s=mean(lambda one: one.alone),
        causes=dict(causes),
        one_rank=job.samples * strategy.accumulation / _alone(job, cluster, strategy.accumulation),
        memory=memory, fits=limit is None or memory.total <= limit, timeline=round_[-1].timeline,
        link_bytes=mean(lambda one: one.link_bytes),
        price=1e6 * cluster.device.price_per_hour * world * seconds / 3600 / samples,
    )  # fmt: skip


@dataclass(frozen=True)
class _Round:
    """Steps of one kind, simulated. Figures are of all steps of the phase together."""

    phase: Phase
    timeline: Sequence[Timed]
    seconds: float
    alone: float
    causes: Mapping[str, float]
    link_bytes: float


def _timed(phase: Phase, job: Job, cluster: Cluster, slowest: float, find: Simulations, world: int) -> _Round:
    if cluster.device.kind == "cpu":
        operations = [replace(one, stream=COMPUTE) if one.blocks else one for one in phase.operations]
        phase = replace(phase, operations=operations)
    exchanges = {
        number: find(one.collective, one.nbytes, world, one.group, one.algorithm)
        for number, one in enumerate(phase.operations)
        if one.collective and (one.group.size if one.group else world) > 1
    }
    demands = [
        _of_exchange(one, exchanges[number], cluster)
        if number in exchanges
        else _of_computation(one, job, cluster, slowest)
        for number, one in enumerate(phase.operations)
    ]
    timeline = run(phase.operations, demands)
    alone: dict[int, float] = defaultdict(float)  # by stage
    for one, need in zip(phase.operations, demands, strict=True):
        alone[one.stage] += need.seconds if one.stream.startswith(COMPUTE) and not one.collective else 0.0
    sent: dict[int, float] = defaultdict(float)
    for number, exchange in exchanges.items():
        sent[phase.operations[number].stage] += exchange.sent * phase.operations[number].times
    return _Round(
        phase, timeline, max(one.ended for one in timeline), max(alone.values()), _causes(timeline, exchanges),
        max(sent.values(), default=0.0),
    )  # fmt: skip


def _of_exchange(one: Operation, exchange: Exchange, cluster: Cluster) -> Demand:
    outcome = exchange.outcome
    shares = {f"{LINK} {one.stage}": max(outcome.busy.values(), default=0.0)}
    if cluster.device.kind == "cpu":
        # Ranks that share a core keep it busy together.
        busy = max(outcome.busy_cores, default=0.0) / cluster.cores_of_a_rank
        shares[f"{CORE} {one.stage}"] = min(busy, 1.0)
    return Demand(outcome.seconds * one.times, shares)


def _of_computation(one: Operation, job: Job, cluster: Cluster, slowest: float) -> Demand:
    seconds = one.seconds / cluster.device.speed * slowest
    if cluster.device.kind == "gpu":
        return Demand(seconds)
    # Cores that several ranks share make each of them slower, also without communication.
    wanted = job.threads / cluster.cores_of_a_rank
    return Demand(seconds * max(1.0, wanted), {f"{CORE} {one.stage}": min(1.0, wanted)})


def _alone(job: Job, cluster: Cluster, accumulation: int) -> float:
    """Returns the seconds of a step of one rank that has nobody to communicate with."""
    passes = sum(layer.forward_s + layer.backward_s for layer in job.layers)
    return (accumulation * passes + job.update_s() + job.other_s) / cluster.device.speed


def _causes(timeline: Sequence[Timed], exchanges: Mapping[int, Exchange]) -> dict[str, float]:
    """Returns the seconds by cause along the chain of operations that the end of the step waited for."""
    found: dict[str, float] = defaultdict(float)
    for number in chain(timeline):
        one, seconds = timeline[number], timeline[number].ended - timeline[number].began
        if number not in exchanges:
            found[one.operation.kind] += seconds
            continue
        outcome = exchanges[number].outcome
        for cause, part in outcome.made_of.items() if outcome.seconds else ():
            found[cause] += seconds * part / outcome.seconds
    return dict(found)


def faster_links(network: Network) -> Network:
    """Returns a network whose links have twice the rate."""
    topology = network.topology
    change: dict[str, Any] = (
        {"rate": 2 * topology.rate}
        if not isinstance(topology.rate, list)
        else {"rate": [2 * rate for rate in topology.rate]}
    )
    if isinstance(topology, Sites):
        change["trunk"] = 2 * topology.trunk
    if isinstance(topology, Graph):
        links = [one.model_copy(update={"rate": one.rate and 2 * one.rate}) for one in topology.links]
        change["links"] = links
    return network.model_copy(update={"topology": topology.model_copy(update=change)})


def longer_latency(network: Network) -> Network:
    """Returns a network in which links, and messages on their way, take twice the latency."""
    topology, costs = network.topology, network.costs
    change: dict[str, Any] = {"latency_us": 2 * topology.latency_us}
    if isinstance(topology, Sites):
        change["trunk_latency_us"] = 2 * topology.trunk_latency_us
    if isinstance(topology, Graph):
        links = [
            one.model_copy(update={"latency_us": one.latency_us and 2 * one.latency_us})
            for one in topology.links
        ]
        change["links"] = links
    rows = {
        place: [row.model_copy(update={"latency_us": 2 * row.latency_us}) for row in getattr(costs, place)]
        for place in ("inside", "between")
    }
    return network.model_copy(
        update={"topology": topology.model_copy(update=change), "costs": costs.model_copy(update=rows)}
    )


def sensitivity(job: Job, cluster: Cluster, strategy: Strategy, world: int) -> dict[str, float]:
    """Returns by how much the rate changes if one thing changes: 0.11 is 11 per cent more samples per second."""
    base = predict(job, cluster, strategy, world).rate
    changed = {
        "twice the bandwidth": predict(job, cluster, strategy, world, Simulations(cluster, faster_links)),
        "twice the latency": predict(job, cluster, strategy, world, Simulations(cluster, longer_latency)),
        "twice the computing speed": predict(job, cluster.faster(2), strategy, world),
    }
    return {name: one.rate / base - 1 for name, one in changed.items()}
