"""Networks to simulate: hosts, switches and links, described in Python or in a TOML file.

Every kind of network is turned into nodes and one-way links for the engine. ``rate`` is that of a link in each
direction, ``latency_us`` what a byte takes over one link.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from ringreduce.simulate.files import Rate, Table, read

__all__ = ["Costs", "FatTree", "Flat", "Graph", "MessageCosts", "Network", "Sites", "Torus", "read_network"]

MOST_RANKS = 1 << 17
PositiveRate = Annotated[Rate, Field(gt=0)]
Pair = tuple[str, str]


class Plan:
    """Nodes and links by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.links: list[tuple[int, int, float, float]] = []  # from, to, rate, seconds
        self.names: list[Pair] = []
        self.rings: list[tuple[list[str], int]] = []

    def turns(self, *rings: tuple[list[str], int]) -> None:
        """The network looks the same when the nodes of each ring, hosts first, move on by so many places."""
        self.rings = list(rings)

    def turned(self) -> list[int]:
        """Where each node is then."""
        places = list(range(len(self.nodes)))
        for ring, step in self.rings:
            for place, name in enumerate(ring):
                places[self.nodes[name]] = self.nodes[ring[(place + step) % len(ring)]]
        return places

    def add(self, name: str) -> str:
        if name in self.nodes:
            raise ValueError(f"two nodes are called {name!r}")
        self.nodes[name] = len(self.nodes)
        return name

    def link(self, a: str, b: str, rate: float, latency_us: float) -> None:
        """A link in one direction."""
        for name in (a, b):
            if name not in self.nodes:
                raise ValueError(f"no node is called {name!r}")
        self.links.append((self.nodes[a], self.nodes[b], rate, latency_us * 1e-6))
        self.names.append((a, b))

    def join(self, a: str, b: str, rate: float, latency_us: float) -> None:
        """Links in both directions."""
        self.link(a, b, rate, latency_us)
        self.link(b, a, rate, latency_us)

    def cut(self, a: str, b: str) -> None:
        """Takes away what joins two nodes."""
        kept = [place for place, name in enumerate(self.names) if set(name) != {a, b}]
        if len(kept) == len(self.names):
            raise ValueError(f"no link joins {a!r} and {b!r}")
        self.links = [self.links[place] for place in kept]
        self.names = [self.names[place] for place in kept]

    def check_connected(self, hosts: list[str]) -> None:
        """Raises ValueError where two hosts cannot reach each other."""
        neighbours: dict[str, list[str]] = {name: [] for name in self.nodes}
        for one, other in self.names:
            neighbours[one].append(other)
        reached, queue = {hosts[0]}, [hosts[0]]
        for name in queue:
            new = [other for other in neighbours[name] if other not in reached]
            reached.update(new)
            queue += dict.fromkeys(new)
        for host in hosts:
            if host not in reached:
                raise ValueError(f"the network is not connected: nothing leads from {hosts[0]!r} to {host!r}")


class Topology(Table):
    """How hosts are joined."""

    ranks_per_host: PositiveInt = 1
    rate: PositiveRate
    latency_us: NonNegativeFloat = 1.0

    @abstractmethod
    def build(self) -> tuple[Plan, list[str]]:
        """The nodes, and which of them are hosts, in the order of their ranks."""

    def for_world(self, world: int) -> Topology:
        """The same with so many ranks."""
        raise ValueError(f"the network has its own number of ranks: leave world out, which is {world}")

    def _hosts_for(self, world: int) -> int:
        if not 1 <= world <= MOST_RANKS or world % self.ranks_per_host:
            raise ValueError(
                f"world must be a multiple of ranks_per_host, {self.ranks_per_host}, up to {MOST_RANKS}, not {world}"
            )
        return world // self.ranks_per_host


class Flat(Topology):
    """All hosts at one switch that is never the bottleneck. rate: of each host's link, one or one for each host."""

    kind: Literal["flat"] = "flat"
    hosts: PositiveInt = 2
    rate: PositiveRate | list[PositiveRate]  # type: ignore[assignment]

    def build(self) -> tuple[Plan, list[str]]:
        rates = self.rate if isinstance(self.rate, list) else [self.rate] * self.hosts
        if len(rates) != self.hosts:
            raise ValueError(f"rate has {len(rates)} values for {self.hosts} hosts")
        plan = Plan()
        hosts = [plan.add(f"host{n}") for n in range(self.hosts)]
        switch = plan.add("switch")
        for host, rate in zip(hosts, rates, strict=True):
            plan.join(host, switch, rate, self.latency_us)
        if len(set(rates)) == 1:
            plan.turns((hosts, 1))
        return plan, hosts

    def for_world(self, world: int) -> Flat:
        return self.model_copy(update={"hosts": self._hosts_for(world)})


class FatTree(Topology):
    """Two tiers: hosts at leaf switches, which are joined by a spine.

    A leaf's way to the spine carries what its hosts' links do, divided by oversubscription.
    """

    kind: Literal["fat_tree"] = "fat_tree"
    hosts: PositiveInt
    hosts_per_leaf: PositiveInt
    oversubscription: PositiveFloat = 1.0

    def build(self) -> tuple[Plan, list[str]]:
        if self.hosts % self.hosts_per_leaf:
            raise ValueError(f"hosts, {self.hosts}, is no multiple of hosts_per_leaf, {self.hosts_per_leaf}")
        plan = Plan()
        hosts = [plan.add(f"host{n}") for n in range(self.hosts)]
        leaves = [plan.add(f"leaf{n}") for n in range(self.hosts // self.hosts_per_leaf)]
        spine = plan.add("spine")
        for number, host in enumerate(hosts):
            plan.join(host, leaves[number // self.hosts_per_leaf], self.rate, self.latency_us)
        for leaf in leaves:
            plan.join(leaf, spine, self.rate * self.hosts_per_leaf / self.oversubscription, self.latency_us)
        plan.turns((hosts, self.hosts_per_leaf), (leaves, 1))
        return plan, hosts

    def for_world(self, world: int) -> FatTree:
        return self.model_copy(update={"hosts": self._hosts_for(world)})


class Torus(Topology):
    """Hosts in a grid that is closed to a ring in each dimension; each has a link to each neighbour.

    The last dimension's neighbours are those with neighbouring ranks. Messages go along the first dimension first.
    """

    kind: Literal["torus"] = "torus"
    dims: list[PositiveInt] = Field(min_length=1)

    def build(self) -> tuple[Plan, list[str]]:
        plan = Plan()
        hosts = [plan.add(f"host{n}") for n in range(math.prod(self.dims))]
        for number, host in enumerate(hosts):
            for neighbour in dict.fromkeys(self._neighbours(number)):
                if neighbour != number:
                    plan.link(host, hosts[neighbour], self.rate, self.latency_us)
        plan.turns((hosts, math.prod(self.dims[1:])))
        return plan, hosts

    def _neighbours(self, number: int) -> Iterator[int]:
        for axis, length in enumerate(self.dims):
            stride = math.prod(self.dims[axis + 1 :])
            place = number // stride % length
            for step in (1, -1):
                yield number + ((place + step) % length - place) * stride


class Sites(Topology):
    """Sites of several hosts, each with a switch; a trunk joins each site with a backbone.

    hosts: of each site.
    """

    kind: Literal["sites"] = "sites"
    hosts: list[PositiveInt] = Field(min_length=2)
    trunk: PositiveRate
    trunk_latency_us: NonNegativeFloat = 1000.0

    def build(self) -> tuple[Plan, list[str]]:
        plan, hosts = Plan(), list[str]()
        backbone = plan.add("backbone")
        for number, count in enumerate(self.hosts):
            site = plan.add(f"site{number}")
            plan.join(site, backbone, self.trunk, self.trunk_latency_us)
            for _ in range(count):
                hosts.append(plan.add(f"host{len(hosts)}"))
                plan.join(hosts[-1], site, self.rate, self.latency_us)
        return plan, hosts


class GraphLink(Table):
    """between: the names of two nodes. Without rate and latency it has those of the graph."""

    between: Pair
    rate: PositiveRate | None = None
    latency_us: NonNegativeFloat | None = None


class Graph(Topology):
    """Any network: hosts and switches by name, and what joins them. Messages go the way of fewest links."""

    kind: Literal["graph"] = "graph"
    hosts: list[str] = Field(min_length=1)
    switches: list[str] = Field(default_factory=list)
    links: list[GraphLink]

    def build(self) -> tuple[Plan, list[str]]:
        plan = Plan()
        for name in (*self.hosts, *self.switches):
            plan.add(name)
        for link in self.links:
            latency = self.latency_us if link.latency_us is None else link.latency_us
            plan.join(*link.between, link.rate or self.rate, latency)
        return plan, self.hosts


class MessageCosts(Table):
    """What a message takes of the cores at its ends, beside the links' part.

    Attributes:
        up_to: bytes of the largest messages that cost this much; None: any.
        send_us, receive_us: of each message, at either end.
        send_rate: at which what is sent is copied out. Infinite where the receiver reads it in place.
        receive_rate, combine_rate: at which what arrives is copied in, or is combined.
        latency_us: beside that of the links.
    """

    up_to: PositiveInt | None = None
    send_us: NonNegativeFloat = 0.0
    receive_us: NonNegativeFloat = 0.0
    send_rate: PositiveRate = math.inf
    receive_rate: PositiveRate = math.inf
    combine_rate: PositiveRate = math.inf
    latency_us: NonNegativeFloat = 0.0

    def in_seconds(self) -> tuple[float, float, float, float, float, float, float]:
        """Up to which size; of a message at either end; of a byte sent, received or combined; the latency."""
        return (
            math.inf if self.up_to is None else self.up_to,
            self.send_us * 1e-6,
            self.receive_us * 1e-6,
            1 / self.send_rate,
            1 / self.receive_rate,
            1 / self.combine_rate,
            self.latency_us * 1e-6,
        )


Rows = Annotated[
    list[MessageCosts], BeforeValidator(lambda found: found if isinstance(found, list) else [found])
]


class Costs(Table):
    """What a collective takes of cores. Without any, only the network takes time.

    Attributes:
        cores: of a host. Where it has more ranks, they take turns. None: one for each rank.
        round_us: of each round.
        switch_us: from one rank to another on the same core.
        inside, between: of messages inside hosts, and between them. One, or several from small to large.
    """

    cores: PositiveInt | None = None
    round_us: NonNegativeFloat = 0.0
    switch_us: NonNegativeFloat = 0.0
    inside: Rows = Field(default_factory=list)
    between: Rows = Field(default_factory=list)


class Network(Table):
    """All that a simulation knows of a place to run in.

    Attributes:
        topology: in files the table ``[network]``.
        failed: pairs of nodes whose link is broken; messages go round it.
        slow: by rank, how many times longer its core takes.
        late_us: by rank, how much later than the others it begins.
        jitter_us: the mean of a random delay of each message, exponentially distributed.
    """

    topology: Flat | FatTree | Torus | Sites | Graph = Field(validation_alias="network", discriminator="kind")
    costs: Costs = Costs()
    failed: list[Pair] = Field(default_factory=list)
    slow: dict[int, PositiveFloat] = Field(default_factory=dict)
    late_us: dict[int, NonNegativeFloat] = Field(default_factory=dict)
    jitter_us: NonNegativeFloat = 0.0

    model_config = ConfigDict(populate_by_name=True)

    def for_world(self, world: int) -> Network:
        """The same with so many ranks, which flat networks and fat trees can have.

        Raises:
            ValueError: the network cannot.
        """
        return self.model_copy(update={"topology": self.topology.for_world(world)})

    def build(self) -> tuple[dict[str, Any], list[str]]:
        """What the engine takes of it, and its links' names.

        Raises:
            ValueError: hosts are not connected, or a rank or node is named that is not there.
        """
        topology, costs = self.topology, self.costs
        plan, hosts = topology.build()
        for pair in self.failed:
            plan.cut(*pair)
        plan.check_connected(hosts)
        world = len(hosts) * topology.ranks_per_host
        for name, ranks in (("slow", self.slow), ("late_us", self.late_us)):
            for rank in ranks:
                if not 0 <= rank < world:
                    raise ValueError(f"{name}: there is no rank {rank} among {world}")
        turns = plan.rings and not self.failed
        built = {
            "nodes": len(plan.nodes),
            "node_of": [plan.nodes[host] for host in hosts for _ in range(topology.ranks_per_host)],
            "cores": [costs.cores or 0] * len(plan.nodes),
            "slowness": [self.slow.get(rank, 1.0) for rank in range(world)] if self.slow else [],
            "links": plan.links,
            "period": plan.rings[0][1] * topology.ranks_per_host if turns else 0,
            "turned": plan.turned() if turns else [],
            "round": costs.round_us * 1e-6,
            "switching": costs.switch_us * 1e-6,
            "inside": [row.in_seconds() for row in costs.inside],
            "between": [row.in_seconds() for row in costs.between],
            "jitter": self.jitter_us * 1e-6,
            "late": [self.late_us.get(rank, 0.0) * 1e-6 for rank in range(world)] if self.late_us else [],
        }
        return built, [f"{one} > {other}" for one, other in plan.names]


def read_network(path: Path) -> Network:
    """A network from a TOML file.

    Raises:
        ValueError: the file cannot be read, or something in it is wrong. One line that names the place.
    """
    network = read(path, Network)
    try:
        network.build()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return network
