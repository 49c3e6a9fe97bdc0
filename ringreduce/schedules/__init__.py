"""Schedules: what each rank does in a collective, as data.

Build one from the catalogue, look at it, prove it, count its cost, or write your own algorithm in Python. No
byte moves here. docs/algorithms.md explains the model; ``python -m ringreduce.schedules`` prints its table.
"""

from ringreduce.schedules.catalogue import Algorithm, algorithms, schedule, table
from ringreduce.schedules.model import Local, Recv, Round, Schedule, ScheduleError, Send
from ringreduce.schedules.registry import Custom, check, custom, load, register

__all__ = [
    "Algorithm",
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
