"""All-reduces made for a network: what ``algorithm="synthesised"`` runs, and a bound on all schedules along trees."""

from ringreduce.synthesis.synthesis import Forest, Synthesis, Way, engine_synthesis, of_ranks, synthesise

__all__ = ["Forest", "Synthesis", "Way", "engine_synthesis", "of_ranks", "synthesise"]
