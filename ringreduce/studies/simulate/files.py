"""Reads TOML files, and checks them against a pydantic model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

__all__ = ["Rate", "Table", "bytes_per_second", "read"]

UNITS = {"B": 1.0, "bit": 1 / 8}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


class Table(BaseModel):
    """A table in a file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=Table)


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


def read(path: Path, model: type[Model]) -> Model:
    """Reads a file.

    Raises:
        ValueError: The file cannot be read, is not TOML, or does not fit the model. The message is one line that names
            the file and the place in it.
    """
    if sys.version_info < (3, 11):
        raise ValueError(f"{path}: reading TOML needs Python 3.11 or later")
    import tomllib

    try:
        return model.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}") from error
    except ValueError as error:  # the file is not TOML, or not UTF-8
        raise ValueError(f"{path}: {error}") from error


def first_problem(error: ValidationError) -> str:
    """Returns the first problem, with its key. A misspelt key comes before the key that is missing because of it."""
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = ".".join(str(part) for part in problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        text = "there is no such key"
    more = len(error.errors()) - 1
    return f"{place}: {text}" + (f" ({more} more problem{'s' if more > 1 else ''})" if more else "")
