"""The torch.distributed backend: ``torch.distributed.init_process_group("ringreduce")``."""

from __future__ import annotations

import atexit
import importlib.util
import sys
import weakref
from dataclasses import dataclass
from datetime import timedelta
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_live: weakref.WeakSet[Any] = weakref.WeakSet()


def register() -> None:
    """Makes the name "ringreduce" known to torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and "RINGREDUCE" not in dist.Backend._plugins:
        dist.Backend.register_backend("ringreduce", _create, extended_api=True, devices=["cpu"])


_module: ModuleType | None = None


def _load() -> ModuleType:
    global _module
    if _module is None:
        from ringreduce.backend import build

        path = Path(__file__).parents[1] / f"{build.name()}.so"
        loader = ExtensionFileLoader("torch_backend", str(path))
        spec = importlib.util.spec_from_file_location("torch_backend", path, loader=loader)
        assert spec
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        _module = module
    return _module


@dataclass(frozen=True)
class Options:
    """What can be chosen: ``init_process_group("ringreduce", pg_options=ringreduce.backend.Options(...))``.

    Args:
        reproducible: whether the result of a reduction's element depends on the ranks' values of it alone; see
            :func:`ringreduce.init`. None: as ``RINGREDUCE_REPRODUCIBLE`` says.
    """

    reproducible: bool | None = None


def _create(options: Any, given: Any) -> Any:
    import ringreduce._engine  # its signal check serves this one too

    del ringreduce
    timeout = (
        options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    )
    chosen = given if isinstance(given, Options) else Options()
    backend = _load().create(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        options.global_ranks_in_group,
        chosen.reproducible,
    )
    _live.add(backend)
    return backend


@atexit.register
def _leave_all() -> None:
    """Peers must learn that a rank has ended, and no thread may run when Python is gone."""
    if _module is None:
        return
    _module.begin_ending()
    crashed = getattr(sys, "last_value", None) is not None  # set where an exception ends the interpreter
    for backend in list(_live):
        backend.abort() if crashed else backend.shutdown()
    _module.finish_callbacks(1000)
