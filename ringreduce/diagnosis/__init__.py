"""Who holds a job up: statistics of calls and waits, reports, metrics, and the diagnosis of jobs that hang."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringreduce.communicator.statistics import CallCount, GroupStatistics, Statistics, Waits
    from ringreduce.communicator.statistics import of_process as statistics
    from ringreduce.diagnosis.reporting import start

__all__ = ["CallCount", "GroupStatistics", "Statistics", "Waits", "start", "statistics"]

REPORT, METRICS, METRICS_FILE = "RINGREDUCE_REPORT", "RINGREDUCE_METRICS", "RINGREDUCE_METRICS_FILE"


def begin(rank: int) -> None:
    """Starts what the environment asks for, once a process knows its rank."""
    if any(os.environ.get(name) for name in (REPORT, METRICS, METRICS_FILE)):
        from ringreduce.diagnosis import reporting

        reporting.begin(rank)


def end() -> None:
    """Makes the last reports of a process that ends without Python's exit handlers."""
    if "ringreduce.diagnosis.reporting" in sys.modules:
        from ringreduce.diagnosis import reporting

        reporting.finish()


def __getattr__(name: str) -> Any:
    # Imported on first use: every process of a job imports this module, and most need no more of it.
    if name == "start":
        return importlib.import_module("ringreduce.diagnosis.reporting").start
    if name in __all__:
        found = importlib.import_module("ringreduce.communicator.statistics")
        return found.of_process if name == "statistics" else getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
