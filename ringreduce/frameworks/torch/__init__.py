"""The torch.distributed backend: ``torch.distributed.init_process_group("ringreduce")``."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any


def register() -> None:
    """Registers the backend "ringreduce" with torch.distributed. torch calls this function when it is imported.

    It warns instead of raising, because an exception would end the import of torch.
    """
    try:
        _register()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"ringreduce cannot register its backend with torch.distributed ({problem})", stacklevel=2
        )


def _register() -> None:
    import torch.distributed as dist

    if dist.is_available() and "RINGREDUCE" not in dist.Backend._plugins:
        from ringreduce.frameworks.torch import env_rendezvous

        dist.Backend.register_backend("ringreduce", _create, extended_api=True, devices=["cpu"])
        dist.Backend.backend_capability["ringreduce"] = _Devices()  # type: ignore[assignment]
        env_rendezvous.extend()
        if os.environ.get("RINGREDUCE_AS"):
            serve_gloo()


def serve_gloo() -> None:
    """Serves what this process asks torch.distributed's Gloo for. Called once, where RINGREDUCE_AS is set."""
    from ringreduce.frameworks.torch import as_gloo, target

    as_gloo.check(os.environ["RINGREDUCE_AS"])
    target.check()  # else Gloo itself serves
    as_gloo.install(_create_for_gloo, is_ours)


class _Devices(Sequence[str]):
    """The types of device that a group serves if its backend is named without any: "cuda" only where there is a GPU.

    Some code of torch prefers a GPU's memory wherever the group serves GPUs. torch reads this when a group is made,
    because programs choose their GPUs after they have imported torch.
    """

    def __len__(self) -> int:
        import torch

        return 2 if torch.cuda.device_count() else 1  # asks without initialising CUDA

    def __getitem__(self, at: Any) -> Any:
        return ["cpu", "cuda"][: len(self)][at]


_CTA_POLICY_ZERO = 2  # of NCCL
_RETURN = 0.02  # seconds at the end, in which other threads return from waits inside torch

_module: ModuleType | None = None
_loading = threading.Lock()


def _load() -> ModuleType:
    """Returns the compiled module for the imported torch. Builds it on first use."""
    global _module
    with _loading:
        if _module is None:
            _module = _load_file()
        return _module


def _load_file() -> ModuleType:
    # This loads the library that the backend needs, and the check for signals that it uses.
    import_module("ringreduce._engine")
    from ringreduce.frameworks.torch import build, target

    path = str(build.module())
    loader = ExtensionFileLoader(target.MODULE, path)
    try:
        module = module_from_spec(ModuleSpec(target.MODULE, loader, origin=path))
        loader.exec_module(module)
    except ImportError as error:
        raise ImportError(
            f"ringreduce: its torch backend does not load ({error}). Remove {path} to build it again"
        ) from error
    return module


def let_tensors_move(ranks: int) -> None:
    """Lets tensors of a job of several ranks move to shared memory, unless the environment says otherwise.

    Builds nothing: a program that does not use torch.distributed can do without it.
    """
    from ringreduce.frameworks.torch import build, target

    if os.environ.get("RINGREDUCE_TORCH_MEMORY") == "ordinary" or ranks == 1:
        return
    try:
        target.check()
    except RuntimeError:  # too old a torch
        return
    if _module is not None or build.existing():
        _load().allocate_tensors()


@dataclass(frozen=True)
class Options:
    """Options of a process group: ``init_process_group("ringreduce", pg_options=ringreduce.backend.Options(...))``.

    Args:
        reproducible: the value of :attr:`ringreduce.Communicator.reproducible`. None means True if
            RINGREDUCE_REPRODUCIBLE is 1 in the environment.
        max_blocks: as for :func:`ringreduce.init`.
        is_high_priority_stream: whether the group's streams have the priority -1, as with torch's NCCL backend.

    Other objects with attributes of these names serve as well. Of ``ProcessGroupNCCL.Options``, ``config.max_ctas`` is
    the number of blocks if it is set, or else ``config.min_ctas``. ``config.cta_policy`` asks for copy engines, as 0
    does, if it is ``NCCL_CTA_POLICY_ZERO``.
    """

    reproducible: bool | None = None
    max_blocks: int | None = None
    is_high_priority_stream: bool = False


def _create(options: Any, given: Any) -> Any:
    timeout = (
        options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    )
    wanted: dict[str, Any] = {one.name: getattr(given, one.name, one.default) for one in fields(Options)}
    if not hasattr(given, "max_blocks"):
        config = getattr(given, "config", None)  # of NCCL, which marks what is not set by a negative number
        ctas = (getattr(config, "max_ctas", -1), getattr(config, "min_ctas", -1))
        wanted["max_blocks"] = next((count for count in ctas if count > 0), None)
        if (policy := getattr(config, "cta_policy", -1)) > 0 and policy & _CTA_POLICY_ZERO:
            wanted["max_blocks"] = 0
    return _make(
        *(options.store, options.group_rank, options.group_size, timeout, Options(**wanted)),
        global_ranks=options.global_ranks_in_group,
        is_connected=not getattr(options, "enable_reconfigure", False),  # from torch 2.15 on
    )


def is_ours(backend: object) -> bool:
    """Returns whether a backend of a process group is one of ours."""
    return _module is not None and isinstance(backend, _module.Backend)


def _create_for_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from ringreduce import log

    made = _make(store, rank, size, timeout, Options(), name="gloo")
    log.say(
        "meeting", log.level_of(rank), rank, f"serves a process group of {size} ranks that asked for gloo"
    )
    return made


def _make(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    chosen: Options,
    global_ranks: Sequence[int] = (),
    is_connected: bool = True,
    name: str = "ringreduce",
) -> Any:
    from ringreduce import _engine, diagnosis, environment, log

    environment.check(os.environ, alone=size == 1)
    module = _load()
    let_tensors_move(size)
    _engine.check_gpu_options(chosen.max_blocks, None)
    _engine.values.flag(chosen.is_high_priority_stream, "is_high_priority_stream")
    log.begin(rank)
    diagnosis.begin(rank)
    return module.create(
        *(store, rank, size, timeout, list(global_ranks), chosen.reproducible, is_connected),
        *(chosen.max_blocks, chosen.is_high_priority_stream, name),
    )


@atexit.register
def _leave_all() -> None:
    """Tells peers that this rank has ended, and stops all threads before Python does."""
    if _module is None:
        return
    from ringreduce import log

    try:
        _module.end(getattr(sys, "last_value", None) is not None)  # set if an exception ends the interpreter
    finally:
        if threading.active_count() > 1:
            time.sleep(_RETURN)
        log.drain()
