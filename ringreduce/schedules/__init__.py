"""Schedules: what each rank does in a collective, as data.

You can build a schedule from the catalogue, print it, prove it, count its cost, or write your own algorithm in Python.
No data moves here. docs/algorithms.md explains the model; ``python -m ringreduce.schedules`` prints its table.
"""

from ringreduce.schedules.catalogue import Algorithm, algorithms, schedule, table
from ringreduce.schedules.collectives import COLLECTIVES, Collective
from ringreduce.schedules.registry import Custom, check, custom, load, register
from ringreduce.schedules.steps import Local, Recv, Round, Schedule, ScheduleError, Send

__all__ = [
    "COLLECTIVES",
    "Algorithm",
    "Collective",
    "Custom",
    "Local",
    "Recv",
    "Round",
    "Schedule",
    "ScheduleError",
    "Send",
    "algorithms",
    "check",
    "custom",
    "load",
    "register",
    "schedule",
    "table",
]
