"""Process groups whose ranks have CUDA tensors: a card's or, without one, the emulated GPU's."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from tests.torch.groups import on_process_group

TESTS = Path(__file__).resolve().parents[2] / "build" / "tests"
MODULE = TESTS / "emulated_cuda.so"


def on_emulated_gpu(world: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """As on_process_group; function's first argument is the module that gives the streams."""
    return on_process_group(world, _with_gpu, function, args, **options)


def _with_gpu(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return function(emulated_cuda(), *args)


def emulated_cuda() -> Any:
    """Makes the emulated GPU this process's device "cuda"."""
    import torch

    os.environ["RINGREDUCE_CUDA_LIBRARY"] = str(TESTS / "libringreduce_cuda_emulated.so")
    os.environ["RINGREDUCE_EMULATED_BLOCKS"] = "16"  # for all groups of a process
    # These refuse where torch has no CUDA.
    torch.cuda._lazy_init = lambda: None
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    loader = ExtensionFileLoader("emulated_cuda", str(MODULE))
    module = module_from_spec(ModuleSpec("emulated_cuda", loader, origin=str(MODULE)))
    loader.exec_module(module)
    return module
