"""Strategies of parallel training: each turns a job into the operations of a step, and counts the memory.

There is a file for each. :func:`strategy` finds one by its name and settings.
"""

from __future__ import annotations

from pydantic import ValidationError

from ringreduce.settings import first_problem
from ringreduce.studies.plan.strategies.balanced import Balanced
from ringreduce.studies.plan.strategies.compressed import BF16, FP8, FP16, Int8, PowerSGD, SignMajority, TopK
from ringreduce.studies.plan.strategies.data_parallel import DataParallel
from ringreduce.studies.plan.strategies.ddp import DDP
from ringreduce.studies.plan.strategies.fsdp2 import FSDP2
from ringreduce.studies.plan.strategies.low_communication import DiLoCo, LocalSGD, StreamingDiLoCo
from ringreduce.studies.plan.strategies.parameter_server import ParameterServer, StaleParameterServer
from ringreduce.studies.plan.strategies.strategy import Phase, Strategy
from ringreduce.studies.plan.strategies.three_d import ThreeD
from ringreduce.studies.plan.strategies.zero1 import ZeRO1
from ringreduce.studies.plan.strategies.zero2 import ZeRO2

__all__ = ["EXACT", "STRATEGIES", "Phase", "Strategy", "strategy"]

# Those that make the same steps as one process with the whole batch, whatever the network.
EXACT: dict[str, type[Strategy]] = {
    "ddp": DDP, "data_parallel": DataParallel, "zero1": ZeRO1, "zero2": ZeRO2, "fsdp2": FSDP2,
}  # fmt: skip
STRATEGIES: dict[str, type[Strategy]] = {
    **EXACT,
    "3d": ThreeD,
    "balanced": Balanced,
    "bf16": BF16, "fp16": FP16, "int8": Int8, "fp8": FP8,
    "sign_majority": SignMajority, "top_k": TopK, "power_sgd": PowerSGD,
    "local_sgd": LocalSGD, "diloco": DiLoCo, "streaming_diloco": StreamingDiLoCo,
    "parameter_server": ParameterServer, "stale_parameter_server": StaleParameterServer,
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
