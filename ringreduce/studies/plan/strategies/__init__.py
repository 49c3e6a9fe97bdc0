"""Strategies of parallel training: each turns a job into the operations of a step, and counts the memory.

There is a file for each. :func:`strategy` finds one by its name and settings.
"""

from __future__ import annotations

from pydantic import ValidationError

from ringreduce.settings import first_problem
from ringreduce.studies.plan.strategies.data_parallel import DataParallel
from ringreduce.studies.plan.strategies.ddp import DDP
from ringreduce.studies.plan.strategies.fsdp2 import FSDP2
from ringreduce.studies.plan.strategies.strategy import Strategy
from ringreduce.studies.plan.strategies.zero1 import ZeRO1
from ringreduce.studies.plan.strategies.zero2 import ZeRO2

__all__ = ["DDP", "FSDP2", "STRATEGIES", "DataParallel", "Strategy", "ZeRO1", "ZeRO2", "strategy"]

STRATEGIES: dict[str, type[Strategy]] = {
    "ddp": DDP, "data_parallel": DataParallel, "zero1": ZeRO1, "zero2": ZeRO2, "fsdp2": FSDP2,
}  # fmt: skip


def strategy(text: str) -> Strategy:
    """Returns the strategy of a text such as "zero2" or "data_parallel:bucket_mb=10:accumulation=4".

    Raises:
        ValueError: There is no such strategy or setting. The message names it.
    """
    name, *settings = text.split(":")
    if name not in STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    pairs = [one.partition("=") for one in settings]
    try:
        return STRATEGIES[name].model_validate({key: value for key, _, value in pairs})
    except ValidationError as error:
        raise ValueError(f"strategy {text!r}: {first_problem(error)}") from error
