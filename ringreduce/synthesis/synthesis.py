"""What was made for a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringreduce import _engine, schedules
from ringreduce._engine import schedules as _schedules
from ringreduce._engine import values

if TYPE_CHECKING:
    from ringreduce.simulate.network import Network

__all__ = ["Forest", "Synthesis", "Way", "synthesise"]


@dataclass(frozen=True)
class Forest:
    """Spanning trees that carry equal parts of the buffer.

    Attributes:
        trees: of each, by rank, the parent; -1 of the root.
        rate: bytes of the buffer a second that they carry.
    """

    trees: list[list[int]]
    rate: float

    def schedule(self, world: int, rank: int) -> schedules.Schedule:
        """One rank's schedule along the trees."""
        return _schedules.build("all_reduce", "synthesised", world, rank, trees=self.trees)


@dataclass(frozen=True)
class Way:
    """How ``algorithm="synthesised"`` does it for a size.

    Attributes:
        algorithm: of the catalogue: "synthesised", or another one where trees are predicted to be no faster.
        forest: the number of the forest among :attr:`Synthesis.forests`; -1 with another algorithm.
        seconds: predicted; 0 where nothing is known of the network.
    """

    algorithm: str
    slice_bytes: int
    lanes: int
    forest: int
    seconds: float


class Synthesis:
    """All-reduces made for a network.

    Attributes:
        world: the number of ranks.
        bound: bytes of the buffer a second that no schedule along spanning trees exceeds on this network.
        limits: the links that this is due to.
        forests: trees that come near it, from few to many.
        seconds: what making them took.
    """

    world: int
    bound: float
    limits: list[str]
    forests: list[Forest]
    seconds: float

    def __init__(
        self,
        made: _engine.Synthesis,
        world: int,
        names: Sequence[str],
        way: Callable[[int], tuple[str, int, int, int, float]],
    ) -> None:
        self.world, self.bound, self.seconds = world, made.bound, made.seconds
        self.limits = [names[link] for link in made.limits]
        self.forests = [Forest(trees, rate) for trees, rate in made.forests]
        self._way = way

    def way(self, nbytes: int) -> Way:
        """How a buffer of so many bytes is reduced: what is predicted to be fastest."""
        return Way(*self._way(values.whole(nbytes, "nbytes", 0, 2**48)))

    def __repr__(self) -> str:
        if not self.forests:
            return "<Synthesis: none; the network has one host, or more than 256>"
        trees = [len(forest.trees) for forest in self.forests]
        due = ", ".join(self.limits[:4]) + (", ..." if len(self.limits) > 4 else "")
        return f"<Synthesis: at most {self.bound / 1e6:.4g} MB/s because of {due}; {trees[0]} to {trees[-1]} trees>"


def engine_synthesis(network: Network) -> tuple[_engine.Synthesis, int, list[str]]:
    """The engine's for a described network, the number of its ranks, and its links' names."""
    built, names = network.build()
    ranks, world = network.topology.ranks_per_host, len(built["node_of"])
    groups = [] if ranks == 1 else [rank // ranks for rank in range(world)]
    made = _engine.make_synthesis(
        nodes=built["nodes"], node_of=built["node_of"], links=built["links"], groups=groups
    )
    return made, world, names


def synthesise(network: Network) -> Synthesis:
    """Makes all-reduces for a described network. Nothing is sent.

    Raises:
        ValueError: hosts are not connected.
    """
    made, world, names = engine_synthesis(network)
    ranks = network.topology.ranks_per_host
    transport = "shm" if ranks == world else "tcp" if ranks == 1 else "shm+tcp"
    crowded = ranks > (network.costs.cores or ranks)

    def way(nbytes: int) -> tuple[str, int, int, int, float]:
        algorithm, slice_bytes, lanes, _ = _engine.choose("all_reduce", nbytes, world, transport, crowded)
        return made.fastest(nbytes, algorithm, slice_bytes, lanes)

    return Synthesis(made, world, names, way)


def of_ranks(engine: _engine.Communicator, names: list[str] | None) -> Synthesis | None:
    """What a communicator has made; None where it has not. ``names``: of the links; None: those that were measured."""
    made = engine.synthesis
    if made is None:
        return None
    names = names or [
        f"{_node(one, made.nodes)} > {_node(other, made.nodes)}" for one, other, _, _ in made.links
    ]
    return Synthesis(made, engine.size, names, engine.synthesised)


def _node(node: int, nodes: int) -> str:
    """As csrc/engine/planning/network.h numbers them."""
    hosts = (nodes - 1) // 3
    kinds = ("host {}", "port of host {}", "site of host {}", "backbone")
    return kinds[node // hosts].format(node % hosts)
