"""The environment variables of Horovod that this package reads."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Settings", "logger", "read"]

logger = logging.getLogger("ringreduce.horovod")

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


class Settings(NamedTuple):
    """What the environment says, in bytes and seconds."""

    fusion_bytes: int
    cycle: float
    cache_capacity: int
    stall_warning: float  # 0: no check
    stall_shutdown: float  # 0: never
    timeline: str
    mark_cycles: bool
    dynamic_sets: bool


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Reads the variables.

    Raises:
        ValueError: a variable has an invalid value.
    """

    def number(name: str, default: float) -> float:
        text = environment.get(name) or str(default)
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be a number that is not negative, not {text!r}")
        return value

    def flag(name: str) -> bool:
        return number(name, 0) != 0

    found = Settings(
        int(number("HOROVOD_FUSION_THRESHOLD", 128 << 20)),
        number("HOROVOD_CYCLE_TIME", 1) / 1e3,
        int(number("HOROVOD_CACHE_CAPACITY", 1024)),
        0.0 if flag("HOROVOD_STALL_CHECK_DISABLE") else number("HOROVOD_STALL_CHECK_TIME_SECONDS", 60),
        number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0),
        environment.get("HOROVOD_TIMELINE", ""),
        flag("HOROVOD_TIMELINE_MARK_CYCLES"),
        flag("HOROVOD_DYNAMIC_PROCESS_SETS"),
    )
    _set_level(environment.get("HOROVOD_LOG_LEVEL") or "warning")
    if flag("HOROVOD_AUTOTUNE"):
        logger.info("HOROVOD_AUTOTUNE is not needed: there is nothing to tune")
    return found


def _set_level(name: str) -> None:
    if name.lower() not in LEVELS:
        raise ValueError(f"HOROVOD_LOG_LEVEL must be one of {', '.join(LEVELS)}, not {name!r}")
    logger.setLevel(LEVELS[name.lower()])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("ringreduce: %(message)s"))
        logger.addHandler(handler)
