"""Data-parallel training: :class:`DataParallel` and what it consists of.

wrapper.py is what a program sees, reducer.py what happens in a backward pass; the other files are a part of that each.
"""

from __future__ import annotations

from ringreduce.data_parallel.hooks import GradBucket
from ringreduce.data_parallel.timings import BucketTiming, StepTimings
from ringreduce.data_parallel.wrapper import DataParallel

__all__ = ["BucketTiming", "DataParallel", "GradBucket", "StepTimings"]
