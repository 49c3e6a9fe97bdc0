"""All-reduces that are synthesised for the network between a group's ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringreduce import _engine, schedules
from ringreduce._engine import schedules as _schedules
from ringreduce._engine import values

__all__ = ["DescribedNetwork", "Forest", "Synthesis", "Way", "of_ranks"]


class DescribedNetwork(Protocol):
    """A description of a network, such as :class:`ringreduce.simulate.Network`."""

    def engine_synthesis(self) -> tuple[_engine.Synthesis, int, list[str]]:
        """Returns the engine's synthesis for the network, the number of ranks, and the names of the links."""


@dataclass(frozen=True)
class Forest:
    """Spanning trees that carry equal parts of the buffer.

    Attributes:
        trees: For each tree, the parent of each rank; -1 for the root.
        rate: The rate at which the trees reduce the buffer, in bytes per second.
    """

    trees: list[list[int]]
    rate: float

    def schedule(self, world: int, rank: int) -> schedules.Schedule:
        """Returns the schedule of one rank along the trees."""
        return _schedules.build("all_reduce", "synthesised", world, rank, trees=self.trees)


@dataclass(frozen=True)
class Way:
    """How ``algorithm="synthesised"`` reduces a buffer of one size.

    Attributes:
        algorithm: "synthesised", or another algorithm of the catalogue if trees are predicted to be no faster.
        slice_bytes: The bytes of a round's messages in one slice.
        lanes: The number of slices in flight.
        forest: The index of the forest in :attr:`Synthesis.forests`, or -1 for another algorithm.
        seconds: The predicted time, or 0 if nothing is known of the network.
    """

    algorithm: str
    slice_bytes: int
    lanes: int
    forest: int
    seconds: float


class Synthesis:
    """All-reduces made for a network.

    Attributes:
        world: The number of ranks.
        bound: The rate that no schedule along spanning trees exceeds on this network, in bytes of the buffer per
            second.
        limits: The links that cause this bound.
        forests: Forests whose rates come close to the bound, from few trees to many.
        seconds: The time that it took to make them.
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
        """Returns the way that is predicted to be fastest for a buffer of nbytes."""
        return Way(*self._way(values.whole(nbytes, "nbytes", 0, 2**48)))

    def __repr__(self) -> str:
        if not self.forests:
            return "<Synthesis: none; the network has one host, or more than 256>"
        trees = [len(forest.trees) for forest in self.forests]
        due = ", ".join(self.limits[:4]) + (", ..." if len(self.limits) > 4 else "")
        return f"<Synthesis: at most {self.bound / 1e6:.4g} MB/s because of {due}; {trees[0]} to {trees[-1]} trees>"


def of_ranks(engine: _engine.Communicator, names: list[str] | None) -> Synthesis | None:
    """Returns the synthesis of a communicator, or None if it has none.

    ``names`` are the names of the links, or None for links that the communicator measured.
    """
    made = engine.synthesis
    if made is None:
        return None
    names = names or [
        f"{_node(one, made.nodes)} > {_node(other, made.nodes)}" for one, other, _, _ in made.links
    ]
    return Synthesis(made, engine.size, names, engine.synthesised)


def _node(node: int, nodes: int) -> str:
    """Returns the name of a node. csrc/engine/planning/network.h defines the numbers."""
    hosts = (nodes - 1) // 3
    kinds = ("host {}", "port of host {}", "site of host {}", "backbone")
    return kinds[node // hosts].format(node % hosts)
