"""Topologies of networks: hosts, switches and links by name. Every kind is converted to nodes and one-way links."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from ringreduce.settings import Table
from ringreduce.studies.simulate.rates import Rate

__all__ = ["FatTree", "Flat", "Graph", "GraphLink", "Pair", "PositiveRate", "Sites", "Torus"]

MOST_RANKS = 1 << 17
PositiveRate = Annotated[Rate, Field(gt=0)]
Pair = tuple[str, str]


class Blueprint:
    """Nodes and links by name, from which a network is built."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.links: list[tuple[int, int, float, float]] = []  # from, to, rate, seconds
        self.names: list[Pair] = []
        self.rings: list[tuple[list[str], int]] = []

    def turns(self, *rings: tuple[list[str], int]) -> None:
        """Declares a symmetry: the network is unchanged if the nodes of each ring move on by its number of places.

        The ring of the hosts comes first.
        """
        self.rings = list(rings)

    def turned(self) -> list[int]:
        """Returns the node in whose place each node is after that move."""
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
        """Adds a link in one direction."""
        for name in (a, b):
            if name not in self.nodes:
                raise ValueError(f"no node is called {name!r}")
        self.links.append((self.nodes[a], self.nodes[b], rate, latency_us * 1e-6))
        self.names.append((a, b))

    def join(self, a: str, b: str, rate: float, latency_us: float) -> None:
        """Adds links in both directions."""
        self.link(a, b, rate, latency_us)
        self.link(b, a, rate, latency_us)

    def cut(self, a: str, b: str) -> None:
        """Removes the links between two nodes."""
        kept = [place for place, name in enumerate(self.names) if set(name) != {a, b}]
        if len(kept) == len(self.names):
            raise ValueError(f"no link joins {a!r} and {b!r}")
        self.links = [self.links[place] for place in kept]
        self.names = [self.names[place] for place in kept]

    def check_connected(self, hosts: list[str]) -> None:
        """Raises ValueError if two hosts cannot reach each other."""
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
                raise ValueError(
                    f"the network is not connected: there is no path from {hosts[0]!r} to {host!r}"
                )


class Topology(Table):
    """Base class of the topologies.

    Attributes:
        ranks_per_host: The number of ranks on each host.
        rate: The rate of a link in each direction.
        latency_us: The latency of a link, in microseconds.
    """

    ranks_per_host: PositiveInt = 1
    rate: PositiveRate
    latency_us: NonNegativeFloat = 1.0

    @abstractmethod
    def build(self) -> tuple[Blueprint, list[str]]:
        """Returns the nodes and links, and the names of the hosts in the order of their ranks."""

    def for_world(self, world: int) -> Topology:
        """Returns the same kind of network for another number of ranks."""
        raise ValueError(f"the network has a fixed number of ranks: do not ask for {world}")

    def _hosts_for(self, world: int) -> int:
        if not 1 <= world <= MOST_RANKS or world % self.ranks_per_host:
            raise ValueError(
                f"world must be a multiple of ranks_per_host, {self.ranks_per_host}, up to {MOST_RANKS}, not {world}"
            )
        return world // self.ranks_per_host


class Flat(Topology):
    """All hosts on one switch that is never the bottleneck.

    ``rate`` is that of each host's link: one rate, or a list with one for each host. With fewer ranks, the first hosts
    have them.
    """

    kind: Literal["flat"] = "flat"
    hosts: PositiveInt = 2
    rate: PositiveRate | list[PositiveRate]  # type: ignore[assignment]

    def build(self) -> tuple[Blueprint, list[str]]:
        rates = self.rate if isinstance(self.rate, list) else [self.rate] * self.hosts
        if len(rates) != self.hosts:
            raise ValueError(f"rate has {len(rates)} values for {self.hosts} hosts")
        plan = Blueprint()
        hosts = [plan.add(f"host{n}") for n in range(self.hosts)]
        switch = plan.add("switch")
        for host, rate in zip(hosts, rates, strict=True):
            plan.join(host, switch, rate, self.latency_us)
        if len(set(rates)) == 1:
            plan.turns((hosts, 1))
        return plan, hosts

    def for_world(self, world: int) -> Flat:
        hosts = self._hosts_for(world)
        rate = self.rate[:hosts] if isinstance(self.rate, list) else self.rate
        return self.model_copy(update={"hosts": hosts, "rate": rate})


class FatTree(Topology):
    """Two tiers: hosts on leaf switches, and a spine that joins these switches.

    A leaf switch's link to the spine has the total rate of its hosts' links, divided by ``oversubscription``.
    """

    kind: Literal["fat_tree"] = "fat_tree"
    hosts: PositiveInt
    hosts_per_leaf: PositiveInt
    oversubscription: PositiveFloat = 1.0

    def build(self) -> tuple[Blueprint, list[str]]:
        if self.hosts % self.hosts_per_leaf:
            raise ValueError(
                f"hosts, {self.hosts}, must be a multiple of hosts_per_leaf, {self.hosts_per_leaf}"
            )
        plan = Blueprint()
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
    """Hosts in a grid that wraps around in each dimension, with a link from each host to each neighbour.

    Hosts that are neighbours in the last dimension have neighbouring ranks. Messages travel along the first dimension
    first.
    """

    kind: Literal["torus"] = "torus"
    dims: list[PositiveInt] = Field(min_length=1)

    def build(self) -> tuple[Blueprint, list[str]]:
        plan = Blueprint()
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
    """Sites of several hosts. Each site has a switch, and a trunk joins the switch to a backbone.

    Attributes:
        hosts: The number of hosts of each site.
        trunk: The rate of each trunk in each direction.
        trunk_latency_us: The latency of a trunk, in microseconds.
    """

    kind: Literal["sites"] = "sites"
    hosts: list[PositiveInt] = Field(min_length=2)
    trunk: PositiveRate
    trunk_latency_us: NonNegativeFloat = 1000.0

    def build(self) -> tuple[Blueprint, list[str]]:
        plan, hosts = Blueprint(), list[str]()
        backbone = plan.add("backbone")
        for number, count in enumerate(self.hosts):
            site = plan.add(f"site{number}")
            plan.join(site, backbone, self.trunk, self.trunk_latency_us)
            for _ in range(count):
                hosts.append(plan.add(f"host{len(hosts)}"))
                plan.join(hosts[-1], site, self.rate, self.latency_us)
        return plan, hosts


class GraphLink(Table):
    """Links in both directions between two nodes of a :class:`Graph`, which are named by ``between``.

    If ``rate`` or ``latency_us`` is None, that of the graph applies.
    """

    between: Pair
    rate: PositiveRate | None = None
    latency_us: NonNegativeFloat | None = None


class Graph(Topology):
    """Any network: hosts and switches by name, and the links between them. Messages take the path of fewest links."""

    kind: Literal["graph"] = "graph"
    hosts: list[str] = Field(min_length=1)
    switches: list[str] = Field(default_factory=list)
    links: list[GraphLink]

    def build(self) -> tuple[Blueprint, list[str]]:
        plan = Blueprint()
        for name in (*self.hosts, *self.switches):
            plan.add(name)
        for link in self.links:
            latency = self.latency_us if link.latency_us is None else link.latency_us
            plan.join(*link.between, link.rate or self.rate, latency)
        return plan, self.hosts
