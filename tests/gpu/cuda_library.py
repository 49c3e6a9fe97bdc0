"""Calls libringreduce_cuda.so from Python, for tests and benchmarks.

Arguments are raw addresses in the memory of the current CUDA device, and streams. None is a stream of this module's,
one for each device. CUDA's default stream would wait for those of threads, where a kernel may wait for another rank.
Errors are RuntimeErrors with CUDA's message and the operation that failed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ringreduce import _engine

LIBRARY = Path(  # found in the same way as by the engine
    os.environ.get("RINGREDUCE_CUDA_LIBRARY") or Path(_engine.__file__).with_name("libringreduce_cuda.so")
)

_loaded: ctypes.CDLL | None = None


def is_built() -> bool:
    return LIBRARY.exists()


def call(name: str, *arguments: Any) -> None:
    """Calls an entry point; see entry_points.h in csrc."""
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(str(LIBRARY))
    function = getattr(_loaded, f"ringreduce_cuda_{name}")
    function.restype = ctypes.c_char_p
    if failure := function(*arguments):
        raise RuntimeError(failure.decode())


def why_not() -> str:
    """Returns why the GPU cannot be used, or ""."""
    if not is_built():
        return "built without CUDA"
    try:
        return "" if count_devices() > 0 else "there is no GPU"
    except (OSError, RuntimeError) as error:
        return f"there is no GPU that can be used: {error}"


def count_devices() -> int:
    count = ctypes.c_int()
    call("count_devices", ctypes.byref(count))
    return count.value


def name_of_device() -> str:
    name = ctypes.create_string_buffer(400)
    call("name_device", name, ctypes.c_size_t(len(name)))
    return name.value.decode()


def synchronize(stream: Stream | None = None) -> None:
    call("synchronize", handle(stream))


class Stream:
    """A CUDA stream that waits for no other, and that no other waits for. `open` holds all that must be closed."""

    open: ClassVar[set[Stream]] = set()

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        call("create_stream", ctypes.byref(self.handle))
        self.open.add(self)

    def close(self) -> None:
        call("destroy_stream", self.handle)
        self.open.discard(self)


_own: dict[int, Stream] = {}  # by device
_making = threading.Lock()


def _own_stream() -> Stream:
    device = ctypes.c_int()
    call("current_device", ctypes.byref(device))
    with _making:
        if device.value not in _own:
            _own[device.value] = Stream()
            Stream.open.discard(_own[device.value])
        return _own[device.value]


def handle(stream: Stream | None) -> ctypes.c_void_p:
    return (stream or _own_stream()).handle


class Event:
    """A CUDA event."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        call("create_event", ctypes.byref(self.handle), 1)

    def record(self, stream: Stream | None = None) -> None:
        call("record", self.handle, handle(stream))

    def seconds_until(self, end: Event) -> float:
        milliseconds = ctypes.c_float()
        call("elapsed", ctypes.byref(milliseconds), self.handle, end.handle)
        return milliseconds.value / 1e3

    def close(self) -> None:
        call("destroy_event", self.handle)


class Graph:
    """The work that was captured on a stream."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()

    def launch(self, stream: Stream) -> None:
        call("launch_graph", self.handle, stream.handle)

    def close(self) -> None:
        call("destroy_graph", self.handle)


# cudaStreamCaptureMode: whether allocations, queries or waits of other threads break a capture.
GLOBAL, THREAD_LOCAL = 0, 1


@contextmanager
def captured(stream: Stream, mode: int = THREAD_LOCAL) -> Iterator[Graph]:
    graph = Graph()
    call("begin_capture", stream.handle, mode)
    try:
        yield graph
    finally:
        call("end_capture", ctypes.byref(graph.handle), stream.handle)


class Memory:
    """Memory on the device."""

    def __init__(self, size: int) -> None:
        self.size = size
        address = ctypes.c_void_p()
        call("allocate", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        self.address = address.value or 0

    def put(self, data: np.ndarray[Any, Any], at: int = 0) -> None:
        move(self.address + at, data.ctypes.data, data.nbytes)
        synchronize()

    def get(self) -> np.ndarray[Any, Any]:
        data = np.empty(self.size, np.uint8)
        move(data.ctypes.data, self.address, self.size)
        synchronize()
        return data

    def fill(self, byte: int) -> None:
        call("fill", ctypes.c_void_p(self.address), byte, ctypes.c_size_t(self.size), handle(None))
        synchronize()

    def close(self) -> None:
        call("free", ctypes.c_void_p(self.address))


def move(to: int, source: int, size: int, stream: Stream | None = None) -> None:
    """Copies with CUDA, between devices and hosts.

    To memory that is not page-locked, it returns when the copy is over. From there, it may wait for the stream first.
    """
    call("move", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), handle(stream))


@dataclass(frozen=True)
class Launch:
    stream: Stream | None = None
    blocks: int = 0  # 0: the library's choice

    def arguments(self) -> tuple[Any, ...]:
        return handle(self.stream), self.blocks


def spans(destinations: Sequence[int], sources: Sequence[int]) -> tuple[Any, ...]:
    """Converts addresses to the arguments of entry points."""
    pointers = [(ctypes.c_void_p * max(len(one), 1))(*one) for one in (destinations, sources)]
    return pointers[0], len(destinations), pointers[1], len(sources)


def _number_of(name: str, names: list[str]) -> int:
    if name not in names:
        raise ValueError(f"{name} is not one of {', '.join(names)}")
    return names.index(name)


def combine(
    dtype: str,
    op: str,
    destinations: Sequence[int],
    sources: Sequence[int],
    count: int,
    scale: float = 1.0,
    launch: Launch = Launch(),
) -> None:
    names = _engine.reduce
    call(
        "combine",
        *(_number_of(dtype, names.dtypes()), _number_of(op, names.ops())),
        *spans(destinations, sources),
        *(ctypes.c_size_t(count), ctypes.c_double(scale), *launch.arguments()),
    )


def copy(destinations: Sequence[int], source: int, size: int, launch: Launch = Launch()) -> None:
    to, count, _, _ = spans(destinations, [])
    call("copy", to, count, ctypes.c_void_p(source), ctypes.c_size_t(size), *launch.arguments())


@dataclass(frozen=True)
class Coded:
    """Which spans are encoded in `wire`. The others are arrays of `plain`."""

    wire: str
    plain: str
    op: str
    sources: Sequence[int] = ()
    destinations: Sequence[int] = ()
    quantize: bool = False

    def arguments(self) -> tuple[int, ...]:
        names = _engine.reduce
        return (
            *(_number_of(self.wire, names.wires()), _number_of(self.plain, names.dtypes())),
            *(_number_of(self.op, names.ops()), sum(1 << place for place in self.sources)),
            *(sum(1 << place for place in self.destinations), int(self.quantize)),
        )


def combine_coded(
    coded: Coded,
    destinations: Sequence[int],
    sources: Sequence[int],
    count: int,
    scale: float = 1.0,
    launch: Launch = Launch(),
) -> None:
    call(
        "combine_coded",
        *coded.arguments(),
        *spans(destinations, sources),
        *(ctypes.c_size_t(count), ctypes.c_double(scale), *launch.arguments()),
    )
