"""Rates in files, such as "100 Gbit/s"."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = ["Rate", "bytes_per_second"]

UNITS = {"B": 1.0, "bit": 1 / 8}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


def bytes_per_second(value: Any) -> Any:
    """Converts a rate such as "100 Gbit/s" or "12.5 GB/s" to bytes per second. Numbers are returned unchanged."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?) *([kMGT]|[KMG]i|)(bit|B)/s", value.strip())
    if found is None:
        raise ValueError(f"{value!r} is not a rate; write '100 Gbit/s' or '12.5 GB/s'")
    number, prefix, unit = found.groups()
    return float(number) * PREFIXES[prefix] * UNITS[unit]


Rate = Annotated[float, BeforeValidator(bytes_per_second)]
"""Bytes per second."""
