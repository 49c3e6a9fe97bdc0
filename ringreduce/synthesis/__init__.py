"""All-reduces made for a network: what ``algorithm="synthesised"`` runs, and what no schedule along trees exceeds."""

from ringreduce.synthesis.synthesis import Forest, Synthesis, Way, engine_synthesis, of_ranks, synthesise

__all__ = ["Forest", "Synthesis", "Way", "engine_synthesis", "of_ranks", "synthesise"]
