"""Synthesises all-reduces for a described network."""

from __future__ import annotations

from ringreduce import _engine
from ringreduce.communicator.synthesis import Synthesis
from ringreduce.studies.simulate.network import Network

__all__ = ["synthesise"]


def synthesise(network: Network) -> Synthesis:
    """Makes all-reduces for a described network, without sending anything.

    Raises:
        ValueError: The hosts are not connected.
    """
    made, world, names = network.engine_synthesis()
    ranks = network.topology.ranks_per_host
    transport = network.transport_for(world)
    crowded = ranks > (network.costs.cores or ranks)

    def way(nbytes: int) -> tuple[str, int, int, int, float]:
        algorithm, slice_bytes, lanes, _ = _engine.choose("all_reduce", nbytes, world, transport, crowded)
        return made.fastest(nbytes, algorithm, slice_bytes, lanes)

    return Synthesis(made, world, names, way)
