"""Data-parallel training: :class:`DataParallel` and its parts.

wrapper.py has the class that programs use, and reducer.py follows a backward pass. Each other file is a part of these.
"""

from __future__ import annotations

from ringreduce.training.data_parallel.hooks import GradBucket
from ringreduce.training.data_parallel.wrapper import DataParallel
from ringreduce.training.foundation.timings import BucketTiming, StepTimings

__all__ = ["BucketTiming", "DataParallel", "GradBucket", "StepTimings"]
