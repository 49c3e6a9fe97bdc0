"""Simulating a collective: how long it takes on a described network, what that is made of, and what limits it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any, NamedTuple

from ringreduce import _engine, schedules
from ringreduce._engine import simulation, values
from ringreduce.bench.results import bus_factor
from ringreduce.schedules.registry import hosts_of
from ringreduce.simulate.network import Network
from ringreduce.synthesis import synthesise

__all__ = ["Interval", "Outcome", "simulate"]

PROVED = 64  # ranks: up to this world an algorithm written in Python is proved before it is simulated


class Interval(NamedTuple):
    """What a core or a link was busy with. Times are seconds from the beginning.

    Attributes:
        activity: "send", "receive" or "local", of a rank's core; "transfer", of a link.
        where: the rank, or the link's number.
        peer: the other rank; -1 of a send, which may be to several.
    """

    activity: str
    where: int
    peer: int
    round: int
    slice: int
    begin: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """What a simulation has found.

    Attributes:
        seconds: when the last rank is done, from the first one's beginning.
        made_of: seconds by cause, along the chain of events that the last rank waited for. Of cores: "round", "send"
            and "receive" (by the message), "change" (of a core's rank), "copy_out", "copy_in" and "combine" (by the
            byte). Besides: "transfer" (over links), "latency", and "delay" (jitter, late ranks). They add up to
            ``seconds``.
        busy: by link, the part of the time in which it carries something. Of links that carry the same, one is there.
        busy_cores: by simulated rank, the part of the time in which its core works.
        simulated, simulated_slices: how many ranks and slices were simulated. Each other rank does the same as one of
            them at the same times.
    """

    algorithm: str
    collective: str
    world: int
    nbytes: int
    seconds: float
    made_of: Mapping[str, float]
    busy: Mapping[str, float]
    busy_cores: Sequence[float]
    rounds: int
    slices: int
    messages: int
    simulated: int
    simulated_slices: int
    intervals: Sequence[Interval]
    link_names: Sequence[str]

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes a second, by nccl-tests' definition; 0 where nothing takes time."""
        moved = bus_factor(self.collective, self.world) * self.nbytes
        return moved / self.seconds if self.seconds else 0.0

    @property
    def bottleneck(self) -> str:
        """What most of the time goes to, and where."""
        if not self.seconds:
            return "nothing takes time"
        cause, seconds = max(self.made_of.items(), key=lambda item: item[1])
        share = f"{100 * seconds / self.seconds:.0f} % {cause.replace('_', ' ')}"
        if cause == "transfer" and self.busy:
            name = max(self.busy, key=self.busy.__getitem__)
            return f"{share}; link {name} is busy for {100 * self.busy[name]:.0f} %"
        if cause not in ("latency", "delay") and self.busy_cores:
            rank = max(range(len(self.busy_cores)), key=self.busy_cores.__getitem__)
            return f"{share}; the core of rank {rank} is busy for {100 * self.busy_cores[rank]:.0f} %"
        return share


def simulate(
    algorithm: str | Callable[[int, int], schedules.Schedule],
    nbytes: int,
    network: Network,
    collective: str = "all_reduce",
    *,
    root: int = 0,
    order: Sequence[int] = (),
    seed: int = 0,
    intervals: int = 0,
    slice_bytes: int | None = None,
    lanes: int | None = None,
    most_messages: int = 2_000_000,
    prove: bool = True,
) -> Outcome:
    """Times a collective on a network that need not exist.

    It runs the very schedules that ranks would run, slice by slice, through a simulation of discrete events: cores that
    do one thing at a time, and links that carry one message after the other (LogGP, Alexandrov et al., SPAA 1995, with
    links that messages share). Chunks are taken to be of equal length.

    Args:
        algorithm: of the catalogue, registered, "auto", or a function ``(world, rank) -> Schedule``.
        nbytes: of the whole buffer; 0 for a barrier.
        root: of broadcast, reduce, gather and scatter.
        order: in which rings and chains visit the ranks; empty: by number.
        seed: of the jitter.
        intervals: how many of what cores and links did to keep, for pictures.
        slice_bytes: of a round's messages in one slice; None: as ``auto`` has them.
        lanes: slices in flight; None: as ``auto`` has them.
        most_messages: where all slices take more, only the first ones are simulated. The others are taken to last as
            long as one of those in the middle.
        prove: an algorithm written in Python, for worlds of up to 64 ranks, before it is simulated.

    Raises:
        ValueError: there is no such algorithm, or an argument is impossible.
        ScheduleError: the algorithm is wrong for this world.
    """
    values.whole(nbytes, "nbytes", 0, 0 if collective == "barrier" else 2**62)
    built, link_names = network.build()
    world, topology = len(built["node_of"]), network.topology
    name = algorithm if isinstance(algorithm, str) else getattr(algorithm, "__name__", "function")
    one_host, one_each = world == topology.ranks_per_host, topology.ranks_per_host == 1
    transport = "shm" if one_host else "tcp" if one_each else "shm+tcp"
    crowded = topology.ranks_per_host > (network.costs.cores or topology.ranks_per_host)
    chosen, chosen_slice, chosen_lanes, _ = _engine.choose(
        collective, nbytes, world, transport, crowded, *(() if one_host else _link_between_hosts(built))
    )
    name = chosen if name == "auto" else name
    if callable(algorithm):
        custom: schedules.Custom | None = schedules.Custom(name, algorithm, collective)
    else:
        custom = schedules.custom(name, collective)
    groups = [] if one_each else [rank // topology.ranks_per_host for rank in range(world)]
    trees: list[list[int]] = []
    run = name
    if name == "synthesised":
        made = synthesise(network)
        run, chosen_slice, chosen_lanes, forest, _ = astuple(made.way(nbytes))
        trees = made.forests[forest].trees if forest >= 0 else []
    answer = simulation.simulate(
        **built, bytes=nbytes, seed=values.whole(seed, "seed", 0, 2**63 - 1), intervals=intervals,
        slice_bytes=chosen_slice if slice_bytes is None else values.whole(slice_bytes, "slice_bytes", 1, 2**62),
        lanes=chosen_lanes if lanes is None else values.whole(lanes, "lanes", 1, 2**31 - 1),
        most_messages=values.whole(most_messages, "most_messages", 1, 2**40),
        collective=collective, algorithm=run, root=root, order=list(order), trees=trees,
        groups=groups,
        schedule_of=None if custom is None else _one_by_one(custom, world, root, hosts_of(groups), prove),
    )  # fmt: skip
    seconds = answer["seconds"]
    same = ("made_of", "rounds", "slices", "simulated", "simulated_slices", "messages")
    return Outcome(
        name, collective, world, nbytes, seconds,
        busy={link_names[n]: s / seconds for n, s in enumerate(answer["busy_links"]) if s > 0},
        busy_cores=[s / seconds if seconds else 0.0 for s in answer["busy_ranks"]],
        intervals=[Interval(*row) for row in answer["intervals"]], link_names=link_names,
        **{key: answer[key] for key in same},
    )  # fmt: skip


def _link_between_hosts(built: Mapping[str, Any]) -> tuple[float, float]:
    """Latency and bandwidth as a communicator would measure them: what is typical from the first host to others."""
    leaving = defaultdict(list)
    for source, to, rate, latency in built["links"]:
        leaving[source].append((to, rate, latency))
    first = built["node_of"][0]
    reached, queue = {first: (0.0, math.inf)}, [first]
    for node in queue:
        for to, rate, latency in leaving[node]:
            if to not in reached:
                reached[to] = (reached[node][0] + latency, min(reached[node][1], rate))
                queue.append(to)
    ways = [reached[node] for node in set(built["node_of"]) - {first}]
    _, send, receive, _, _, _, late = built["between"][0] if built["between"] else (0.0,) * 7
    *_, out, into, _, _ = built["between"][-1] if built["between"] else (0.0,) * 7
    latency = median(way[0] for way in ways) + send + receive + late
    seconds = max(1 / median(way[1] for way in ways), out, into)
    return (latency, 1 / seconds) if seconds else (0.0, 0.0)


def _one_by_one(
    custom: schedules.Custom, world: int, root: int, hosts: list[list[int]], prove: bool
) -> Callable[[int], schedules.Schedule]:
    """One rank's schedule after the other; proved where that takes little time."""
    if prove and world <= PROVED:
        custom.heaviest_round(world, root, hosts)
    return lambda rank: custom.plan(world, rank, root, hosts)
