"""Rates and sizes in files, such as "100 Gbit/s" and "80 GB"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = ["Bytes", "Rate", "bytes_per_second", "check_unit", "count_of_bytes"]

UNITS = {"B": 1.0, "bit": 1 / 8}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
AMOUNT = r"([\d.]+(?:e[+-]?\d+)?) *([kMGT]|[KMG]i|)(bit|B)"


def _amount(text: str, suffix: str, wanted: str) -> float:
    found = re.fullmatch(AMOUNT + suffix, text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not {wanted}")
    number, prefix, unit = found.groups()
    return float(number) * PREFIXES[prefix] * UNITS[unit]


def bytes_per_second(value: Any) -> Any:
    """Converts a rate such as "100 Gbit/s" or "12.5 GB/s" to bytes per second. Numbers are returned unchanged."""
    if not isinstance(value, str):
        return value
    return _amount(value, "/s", "a rate; write '100 Gbit/s' or '12.5 GB/s'")


def count_of_bytes(value: Any) -> float:
    """Converts a size such as "80 GB" or "24 GiB" to bytes. A number alone is refused: it lacks its unit."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} lacks a unit; write '80 GB' or '24 GiB'")
    return _amount(value, "", "a size; write '80 GB' or '24 GiB'")


def check_unit(path: Path, table: Mapping[str, Any], place: str, key: str) -> None:
    """Raises ValueError, in one line that names the place, if a rate in a file is a number without a unit."""
    inner = table.get(place)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    if isinstance(value, int | float):
        raise ValueError(f"{path}: {place}.{key}: {value!r} lacks a unit; write '100 Gbit/s' or '12.5 GB/s'")


Rate = Annotated[float, BeforeValidator(bytes_per_second)]
"""Bytes per second."""
Bytes = Annotated[float, BeforeValidator(count_of_bytes)]
"""Bytes."""
