"""Collective communication you can read, measure and drop in."""
