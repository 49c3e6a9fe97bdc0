"""Simulates collectives on networks that need not exist. Requires ``pip install 'ringreduce[study]'``."""

from ringreduce.studies.simulate.network import (
    Costs,
    FatTree,
    Flat,
    Graph,
    GraphLink,
    MessageCosts,
    Network,
    Sites,
    Torus,
    read_network,
)
from ringreduce.studies.simulate.simulation import Interval, Outcome, simulate

__all__ = [
    "Costs",
    "FatTree",
    "Flat",
    "Graph",
    "GraphLink",
    "Interval",
    "MessageCosts",
    "Network",
    "Outcome",
    "Sites",
    "Torus",
    "read_network",
    "simulate",
]
