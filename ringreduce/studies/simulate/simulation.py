"""Simulates a collective: how long it takes on a network, where the time goes, and what limits it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any, NamedTuple

from ringreduce import _engine, schedules
from ringreduce._engine import simulation, values
from ringreduce.schedules.collectives import COLLECTIVES
from ringreduce.schedules.registry import hosts_of
from ringreduce.studies.simulate.network import Network
from ringreduce.studies.simulate.synthesising import synthesise

__all__ = ["Interval", "Outcome", "simulate"]

PROVED = 64  # ranks: up to this world, algorithms written in Python are proved before they are simulated


class Interval(NamedTuple):
    """A period in which a core or a link was busy.

    Attributes:
        activity: "send", "receive" or "local" for a rank's core, "transfer" for a link.
        where: The rank, or the link's index in :attr:`Outcome.link_names`.
        peer: The other rank, or -1 for a send, which may have several receivers.
        round: The round of the schedule.
        slice: The slice.
        begin: When it began, in seconds from the start of the simulation.
        end: When it ended, in seconds from the start of the simulation.
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
    """The result of a simulation.

    Attributes:
        algorithm: The algorithm's name.
        collective: The collective.
        world: The number of ranks.
        nbytes: The size of the whole buffer, in bytes.
        seconds: The time from the start of the first rank to the end of the last one.
        made_of: Seconds by cause, along the chain of events that the last rank waited for. They add up to ``seconds``.
            Cores spend time on "round", "send" and "receive" (per message), "change" (a core switches to another
            rank), and "copy_out", "copy_in" and "combine" (per byte). The other causes are "transfer" (over links),
            "latency", and "delay" (jitter and late ranks).
        busy: For each link by name, the fraction of the time in which it carries data. Links that carry the same are
            represented by one of them.
        busy_cores: For each simulated rank, the fraction of the time in which its core works.
        rounds: The number of rounds.
        slices: The number of slices.
        messages: The number of messages.
        simulated: The number of ranks that were simulated. Every other rank does the same as one of them, at the same
            times.
        simulated_slices: The number of slices that were simulated.
        intervals: What cores and links did, if intervals were asked for.
        link_names: The names of the links.
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
        """Bus bandwidth in bytes per second, as nccl-tests define it. 0 if nothing takes time."""
        moved = COLLECTIVES[self.collective].bus_factor(self.world) * self.nbytes
        return moved / self.seconds if self.seconds else 0.0

    @property
    def bottleneck(self) -> str:
        """The cause that takes most of the time, and the busiest link or core."""
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
    coded: bool = False,
) -> Outcome:
    """Times a collective on a network that need not exist.

    The schedules are those that ranks run. A discrete-event simulation executes them slice by slice. Cores do one
    thing at a time, and links carry one message after the other (LogGP, Alexandrov et al., SPAA 1995, with links that
    messages share). All chunks are assumed to have the same length.

    Args:
        algorithm: The name of an algorithm in the catalogue or a registered one, "auto", or a function
            ``(world, rank) -> Schedule``.
        nbytes: The size of the whole buffer in bytes; 0 for a barrier.
        network: The network, which also determines the number of ranks.
        collective: The collective.
        root: The root of broadcast, reduce, gather and scatter.
        order: The order in which rings and chains visit the ranks. Empty means by rank.
        seed: The seed of the jitter.
        intervals: The most intervals of cores and links to keep, for pictures.
        slice_bytes: The bytes of a round's messages in one slice. None means as ``auto`` chooses.
        lanes: The number of slices in flight. None means as ``auto`` chooses.
        most_messages: If all slices together need more messages, only the first slices are simulated. Each of the
            others is assumed to take as long as one from the middle.
        prove: Whether to prove an algorithm written in Python before it is simulated, in worlds of up to 64 ranks.
        coded: Whether ``auto`` picks an algorithm for values in a wire format, which may not be rounded often.

    Returns:
        The time, its causes, and what limits it.

    Raises:
        ValueError: There is no such algorithm, or an argument is out of range.
        ScheduleError: The algorithm is wrong for this world.
    """
    values.whole(nbytes, "nbytes", 0, 0 if collective == "barrier" else 2**62)
    built, link_names = network.build()
    world, topology = len(built["node_of"]), network.topology
    name = algorithm if isinstance(algorithm, str) else getattr(algorithm, "__name__", "function")
    one_host, one_each = world == topology.ranks_per_host, topology.ranks_per_host == 1
    crowded = topology.ranks_per_host > (network.costs.cores or topology.ranks_per_host)
    chosen, chosen_slice, chosen_lanes, _ = _engine.choose(
        collective, nbytes, world, network.transport_for(world), crowded,
        *((0.0, 0.0) if one_host else _link_between_hosts(built)), coded,
    )  # fmt: skip
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
    """Returns latency and bandwidth as a communicator measures them: medians from the first host to the others."""
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
    """Returns a function from rank to schedule. Proves the schedules first, if that takes little time."""
    if prove and world <= PROVED:
        custom.heaviest_round(world, root, hosts)
    return lambda rank: custom.plan(world, rank, root, hosts)
