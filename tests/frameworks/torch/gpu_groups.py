"""Process groups whose ranks have CUDA tensors: a card's or, without one, the emulated GPU's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any
from unittest import mock

from tests.frameworks.torch.groups import on_process_group

TESTS = Path(__file__).resolve().parents[3] / "build" / "tests"
MODULE = TESTS / "emulated_cuda.so"


def on_emulated_gpu(world: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """As on_process_group; function's first argument is the module that gives the streams."""
    import torch

    with mock.patch.object(torch.cuda, "device_count", _one_device):  # of the forked ranks, when they meet
        return on_process_group(world, _with_gpu, function, args, **options)


def _one_device() -> int:
    return 1


def _with_gpu(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return function(emulated_cuda(), *args)


def emulated_cuda() -> Any:
    """Makes the emulated GPU this process's device "cuda"."""
    import torch

    os.environ["RINGREDUCE_CUDA_LIBRARY"] = str(TESTS / "libringreduce_cuda_emulated.so")
    os.environ.setdefault("RINGREDUCE_EMULATED_BLOCKS", "64")  # for all groups of a process
    # These refuse where torch has no CUDA.
    torch.cuda._lazy_init = lambda: None
    torch.cuda.device_count = _one_device
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    loader = ExtensionFileLoader("emulated_cuda", str(MODULE))
    module = module_from_spec(ModuleSpec("emulated_cuda", loader, origin=str(MODULE)))
    loader.exec_module(module)
    _give_streams(module)
    return module


def _give_streams(module: Any) -> None:
    """torch.cuda's streams, as far as ringreduce uses them."""
    import torch

    class Event:
        def __init__(self, **_: Any) -> None:
            self.event = module.Event()
            self.query, self.synchronize = self.event.query, self.event.synchronize

        def record(self, stream: Stream | None = None) -> None:
            self.event.record(module.current_stream() if stream is None else stream.number)

        def wait(self, stream: Stream | None = None) -> None:
            self.event.let_wait(module.current_stream() if stream is None else stream.number)

    class Stream:
        def __init__(self, device: Any = None, number: int | None = None, priority: int = 0) -> None:
            self.number = module.new_stream() if number is None else number

        @property
        def cuda_stream(self) -> int:
            return int(module.handle_of(self.number))

        def wait_stream(self, other: Stream) -> None:
            module.let_wait(self.number, other.number)

        def wait_event(self, event: Event) -> None:
            event.wait(self)

        def record_event(self, event: Event | None = None) -> Event:
            event = event or Event()
            event.record(self)
            return event

    @contextmanager
    def using(stream: Stream) -> Iterator[None]:
        before = module.use_stream(stream.number)
        try:
            yield
        finally:
            module.use_stream(before)

    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_setDevice = lambda device: None
    torch.cuda.Event = Event  # type: ignore[misc,assignment]
    torch.cuda.Stream = Stream  # type: ignore[misc,assignment]
    torch.cuda.stream = using  # type: ignore[assignment]
    torch.cuda.default_stream = lambda device=None: Stream(number=0)  # type: ignore[assignment]
    torch.cuda.current_stream = lambda device=None: Stream(number=module.current_stream())  # type: ignore[assignment]
