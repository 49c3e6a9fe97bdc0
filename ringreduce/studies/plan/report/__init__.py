"""Writes the report of a plan as a single HTML file."""

from ringreduce.studies.plan.report.page import write

__all__ = ["write"]
