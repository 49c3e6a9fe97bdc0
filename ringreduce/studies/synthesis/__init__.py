"""All-reduces made for a network: what ``algorithm="synthesised"`` runs, and a bound on all schedules along trees."""

from ringreduce.communicator.synthesis import Forest, Synthesis, Way
from ringreduce.studies.simulate.synthesising import synthesise

__all__ = ["Forest", "Synthesis", "Way", "synthesise"]
