"""Networks to simulate, described in Python or in a TOML file: a topology, what cores need, and what is broken.

Every kind of network is converted to nodes and one-way links for the engine. ``rate`` is the rate of a link in each
direction, in bytes per second or as a string such as "100 Gbit/s". ``latency_us`` is the latency of a link.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from ringreduce import _engine
from ringreduce.settings import Table, read
from ringreduce.studies.simulate.topologies import FatTree, Flat, Graph, Pair, PositiveRate, Sites, Torus

__all__ = ["Costs", "MessageCosts", "Network", "read_network"]


class MessageCosts(Table):
    """The time that a message takes on the cores at its ends, in addition to the links.

    Attributes:
        up_to: The largest messages, in bytes, to which these costs apply. None means any size.
        send_us: The cost of sending a message.
        receive_us: The cost of receiving a message.
        send_rate: The rate at which data is copied out. Infinite if the receiver reads it in place.
        receive_rate: The rate at which arriving data is copied in.
        combine_rate: The rate at which arriving data is combined with the data there.
        latency_us: Latency in addition to that of the links.
    """

    up_to: PositiveInt | None = None
    send_us: NonNegativeFloat = 0.0
    receive_us: NonNegativeFloat = 0.0
    send_rate: PositiveRate = math.inf
    receive_rate: PositiveRate = math.inf
    combine_rate: PositiveRate = math.inf
    latency_us: NonNegativeFloat = 0.0

    def in_seconds(self) -> tuple[float, float, float, float, float, float, float]:
        """Returns the limit, the costs of a send and a receive, of a byte sent, received, combined, and the latency."""
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
    """The time that a collective takes on the cores. With the defaults, only the network takes time.

    Attributes:
        cores: The number of cores of a host. If a host has more ranks, they take turns. None means a core for each
            rank.
        round_us: The cost of each round.
        switch_us: The cost of a switch from one rank to another on the same core.
        inside: The costs of messages inside hosts: one :class:`MessageCosts`, or a list from small to large messages.
        between: The same for messages between hosts.
    """

    cores: PositiveInt | None = None
    round_us: NonNegativeFloat = 0.0
    switch_us: NonNegativeFloat = 0.0
    inside: Rows = Field(default_factory=list)
    between: Rows = Field(default_factory=list)


class Network(Table):
    """The network and hosts that a simulation runs on.

    Attributes:
        topology: The topology. In files it is the table ``[network]``.
        costs: The time that collectives take on the cores.
        transport: What carries messages between hosts. ``auto`` chooses as it does there, after a tuning as well.
        failed: Pairs of nodes whose link is broken. Messages take another path.
        slow: For each slow rank, how many times longer its core takes.
        late_us: For each late rank, how much later than the others it begins, in microseconds.
        jitter_us: The mean of a random, exponentially distributed delay of each message, in microseconds.
    """

    topology: Flat | FatTree | Torus | Sites | Graph = Field(validation_alias="network", discriminator="kind")
    costs: Costs = Costs()
    transport: Literal["tcp", "ofi", "mpi"] = "tcp"
    failed: list[Pair] = Field(default_factory=list)
    slow: dict[int, PositiveFloat] = Field(default_factory=dict)
    late_us: dict[int, NonNegativeFloat] = Field(default_factory=dict)
    jitter_us: NonNegativeFloat = 0.0

    model_config = ConfigDict(populate_by_name=True)

    def for_world(self, world: int) -> Network:
        """Returns the same network with another number of ranks.

        Raises:
            ValueError: The network is not flat or a fat tree, or ``world`` is not a multiple of its ranks per host.
        """
        return self.model_copy(update={"topology": self.topology.for_world(world)})

    def transport_for(self, world: int) -> str:
        """Returns the whole transport of so many ranks: shared memory inside hosts, and the other between them."""
        each = self.topology.ranks_per_host
        return "shm" if each == world else self.transport if each == 1 else f"shm+{self.transport}"

    def build(self) -> tuple[dict[str, Any], list[str]]:
        """Returns the network as the engine's arguments, and the names of its links.

        Raises:
            ValueError: The hosts are not connected, or a rank or node does not exist.
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
                    raise ValueError(f"{name}: there is no rank {rank} in a world of {world}")
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

    def engine_synthesis(self) -> tuple[_engine.Synthesis, int, list[str]]:
        """Returns the engine's synthesis for the network, the number of ranks, and the names of the links.

        Raises:
            ValueError: The hosts are not connected, or a rank or node does not exist.
        """
        built, names = self.build()
        ranks, world = self.topology.ranks_per_host, len(built["node_of"])
        groups = [] if ranks == 1 else [rank // ranks for rank in range(world)]
        made = _engine.make_synthesis(
            nodes=built["nodes"], node_of=built["node_of"], links=built["links"], groups=groups
        )
        return made, world, names


def read_network(path: Path) -> Network:
    """Reads a network from a TOML file.

    Raises:
        ValueError: The file cannot be read, or something in it is wrong. The message is one line that names the file
            and the place in it.
    """
    network = read(path, Network)
    try:
        network.build()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return network
