"""A plugin for pytest under which torch's tests fork their ranks, which then need not import torch again."""

from __future__ import annotations

from multiprocessing import get_context
from typing import Any

from torch.testing._internal.common_distributed import MultiProcessTestCase


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Puts tests last that run in pytest's own process: a fork would inherit the groups and threads of theirs."""
    items.sort(key=lambda item: not issubclass(getattr(item, "cls", None) or object, MultiProcessTestCase))


def _fork(case: Any) -> None:
    case._start_processes(get_context("fork").Process)


MultiProcessTestCase._spawn_processes = _fork  # type: ignore[method-assign]
