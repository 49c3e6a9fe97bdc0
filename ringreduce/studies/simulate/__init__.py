"""Simulates collectives on networks that need not exist. Requires ``pip install 'ringreduce[study]'``."""

from ringreduce.studies.simulate.network import Costs, MessageCosts, Network, read_network
from ringreduce.studies.simulate.simulation import Interval, Outcome, simulate
from ringreduce.studies.simulate.topologies import FatTree, Flat, Graph, GraphLink, Sites, Torus

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
