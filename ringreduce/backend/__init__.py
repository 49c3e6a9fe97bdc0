"""The torch.distributed backend: ``torch.distributed.init_process_group("ringreduce")``."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
import weakref
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

_live: weakref.WeakSet[Any] = weakref.WeakSet()


def register() -> None:
    """Makes the name "ringreduce" known to torch.distributed; torch calls it while it is imported.

    It never raises, as that would end the import of torch; a warning says what is wrong.
    """
    try:
        _register()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"ringreduce cannot make its backend known to torch.distributed ({problem})", stacklevel=2
        )


def _register() -> None:
    import torch.distributed as dist

    if dist.is_available() and "RINGREDUCE" not in dist.Backend._plugins:
        from ringreduce.backend import rendezvous

        dist.Backend.register_backend("ringreduce", _create, extended_api=True, devices=["cpu", "cuda"])
        rendezvous.extend()


_module: ModuleType | None = None
_loading = threading.Lock()


def _load() -> ModuleType:
    """The compiled part, for the torch that is imported; builds it if need be."""
    global _module
    with _loading:
        if _module is None:
            _module = _load_file()
        return _module


def _load_file() -> ModuleType:
    # Loads the library that the backend needs; and its check for signals serves the backend too.
    import_module("ringreduce._engine")
    from ringreduce.backend import build, target

    path = str(build.module())
    loader = ExtensionFileLoader(target.MODULE, path)
    try:
        module = module_from_spec(ModuleSpec(target.MODULE, loader, origin=path))
        loader.exec_module(module)
    except ImportError as error:
        raise ImportError(
            f"ringreduce: its torch backend does not load ({error}). It is built anew once {path} is removed"
        ) from error
    return module


@dataclass(frozen=True)
class Options:
    """What can be chosen: ``init_process_group("ringreduce", pg_options=ringreduce.backend.Options(...))``.

    Args:
        reproducible: whether the result of a reduction's element depends on the ranks' values of it alone; see
            :func:`ringreduce.init`. None: as ``RINGREDUCE_REPRODUCIBLE`` says.
    """

    reproducible: bool | None = None


def _shares_tensors() -> bool:
    said = os.environ.get("RINGREDUCE_TORCH_MEMORY", "shared")
    if said not in ("shared", "private"):
        raise ValueError(f"RINGREDUCE_TORCH_MEMORY must be 'shared' or 'private', not {said!r}")
    return said == "shared"


def _create(options: Any, given: Any) -> Any:
    timeout = (
        options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    )
    chosen = given if isinstance(given, Options) else Options()
    shares = _shares_tensors()
    module = _load()
    if shares:
        module.share_tensors()
    from ringreduce import log

    log.begin(options.group_rank)
    backend = module.create(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        options.global_ranks_in_group,
        chosen.reproducible,
        not getattr(options, "enable_reconfigure", False),  # from torch 2.15 on
    )
    _live.add(backend)
    return backend


@atexit.register
def _leave_all() -> None:
    """Peers must learn that a rank has ended, and no thread may run when Python is gone."""
    if _module is None:
        return
    from ringreduce import log

    _module.begin_ending()
    crashed = getattr(sys, "last_value", None) is not None  # set where an exception ends the interpreter
    for backend in list(_live):
        backend.abort() if crashed else backend.shutdown()
    _module.finish_callbacks(1000)
    log.drain()
