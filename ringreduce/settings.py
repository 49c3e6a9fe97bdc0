"""Reads settings from TOML and JSON files, and checks them against a pydantic model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["Table", "first_problem", "load", "read"]

LIMITS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
KINDS = {"int_type": "int", "float_type": "float", "bool_type": "bool", "string_type": "str"}


class Table(BaseModel):
    """A table in a file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=Table)


def read(path: Path, model: type[Model]) -> Model:
    """Reads a file.

    Raises:
        ValueError: The file cannot be read, is not TOML or JSON, or does not fit the model. The message is one line
            that names the file and the place in it.
    """
    try:
        return model.model_validate(load(path))
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}") from error


def load(path: Path) -> dict[str, Any]:
    """Returns the table in a file, unchecked. Raises ValueError like :func:`read`."""
    try:
        text = path.read_text()
        if path.suffix not in (".json", ".toml"):
            raise ValueError("the name must end in .toml or .json")
        found = json.loads(text) if path.suffix == ".json" else importlib.import_module("tomllib").loads(text)
    except ImportError as error:
        raise ValueError(f"{path}: TOML needs Python 3.11 or later; use JSON instead") from error
    except (OSError, ValueError) as error:  # both parsers raise ValueError
        raise ValueError(f"{path}: {getattr(error, 'strerror', error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: the file must hold a table of settings")
    return found


def first_problem(error: ValidationError) -> str:
    """Returns the first problem, with its key. Misspelt keys come before a key that is missing because of them."""
    problems = [(".".join(map(str, each["loc"])), each) for each in error.errors()]
    if unknown := [place for place, each in problems if each["type"] == "extra_forbidden"]:
        return f"{', '.join(unknown)}: there is no such key"
    place, problem = problems[0]
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in LIMITS:
        limit = str(*context.values()).replace("e+", "e").removesuffix(".0")
        text = f" must be {LIMITS[kind]} {limit}, not {problem['input']}"
    elif kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ")
        text = f" must be one of {choices}, not {problem['input']!r}"
    elif kind in KINDS:
        text = f" must be of type {KINDS[kind]}, not {problem['input']!r}"
    else:
        text = f": {problem['msg'].removeprefix('Value error, ')}"
    more = len(problems) - 1
    return (place + text).removeprefix(": ") + (
        f" ({more} more problem{'s' if more > 1 else ''})" if more else ""
    )
