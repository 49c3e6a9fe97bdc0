"""The contestants of bench/gpu/collectives.py: our ranks as threads and as processes, copies, torch and NCCL.

The contestants run repeatedly in turns. Each run launches a graph of several all-reduces on every rank. Its time is
that of the slowest rank, between two CUDA events.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import select
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ringreduce
from ringreduce.build import nccl_library
from tests.gpu import cuda_library
from tests.gpu.cuda_library import Event, Graph, Launch, Memory, Stream, captured

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # needed if ranks are threads; read on first use
LIMIT = 60.0  # seconds after which a rank counts as hanging
BLOCKS = 32  # of a rank: four times what a group has if it does not ask, as there are no other groups
NCCL_THAT_SHARES_A_GPU = 23000  # version 2.30, in the format of ncclGetVersion

T, R = TypeVar("T"), TypeVar("R")


class Unavailable(Exception):
    """A contestant cannot take part. The message says why."""


class Array:
    """A float32 array in the GPU's memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.memory = Memory(4 * count)
        self.memory.fill(0)
        self.__cuda_array_interface__ = {
            **{"shape": (count,), "typestr": "<f4", "data": (self.memory.address, False)},
            **{"version": 3, "strides": None},
        }


Arrays = tuple[Array, Array]


@dataclass
class Contestant:
    name: str
    run: Callable[[], float]  # seconds of one all-reduce
    close: Callable[[], object] = lambda: None
    seconds: list[float] = field(default_factory=list)

    def quartiles(self) -> tuple[float, float, float]:
        low, median, high = statistics.quantiles(self.seconds, n=4)
        return low, median, high


def exchange_unevenly(comm: Any, x: Array, other: Array, **how: Any) -> object:
    """The longest block has as many times the shortest one's rows as there are ranks."""
    shares = [1 + (comm.rank + peer) % comm.size for peer in range(comm.size)]
    each = x.count // sum(shares)
    counts = [each * share for share in shares]
    return comm.all_to_all(x, out=other, send_counts=counts, recv_counts=counts, **how)


COLLECTIVES: dict[
    str, Callable[..., object]
] = {  # of a whole array, and one of a rank's block or, exchanged, whole
    "all_reduce": lambda comm, x, _, **how: comm.all_reduce(x, **how),
    "reduce_scatter": lambda comm, x, block, **how: comm.reduce_scatter(x, out=block, **how),
    "all_gather": lambda comm, x, block, **how: comm.all_gather(block, out=x, **how),
    "broadcast": lambda comm, x, _, **how: comm.broadcast(x, 0, **how),
    "reduce": lambda comm, x, _, **how: comm.reduce(x, 0, **how),
    "gather": lambda comm, x, block, **how: comm.gather(block, 0, out=None if comm.rank else x, **how),
    "scatter": lambda comm, x, block, **how: comm.scatter(None if comm.rank else x, 0, out=block, **how),
    "all_to_all": lambda comm, x, other, **how: comm.all_to_all(x, out=other, **how),
    "uneven_all_to_all": exchange_unevenly,
}


def graph_of(
    comm: Any, arrays: Arrays, stream: Stream, algorithm: str, calls: int, collective: str = "all_reduce"
) -> Graph:
    """Captures a graph of one rank's calls. The algorithm may have a wire format behind it, as in "ring+int8"."""
    handle = stream.handle.value or 0
    name, _, wire = algorithm.partition("+")

    def call() -> None:
        COLLECTIVES[collective](comm, *arrays, algorithm=name, wire=wire or None, stream=handle)

    call()  # allocates before the capture
    cuda_library.synchronize(stream)
    with captured(stream) as graph:
        for _ in range(calls):
            call()
    return graph


def arrays_of(comm: Any, count: int, collective: str = "all_reduce") -> Arrays:
    """Returns the whole array, of a multiple of the ranks, and the other one."""
    if collective == "uneven_all_to_all":
        row = 4 * comm.size * (comm.size + 1) // 2  # blocks begin at accesses of 16 bytes
        whole = max(count // row, 1) * row
        return Array(whole), Array(whole)
    block = max(count // comm.size, 1)
    in_place = collective in ("all_reduce", "broadcast", "reduce")
    other = 1 if in_place else block * comm.size if collective == "all_to_all" else block
    return Array(block * comm.size), Array(other)


def seconds_on(stream: Stream, start: Callable[[], None]) -> float:
    begin, end = Event(), Event()
    begin.record(stream)
    start()
    end.record(stream)
    cuda_library.synchronize(stream)
    seconds = begin.seconds_until(end)
    begin.close()
    end.close()
    return seconds


def on_threads(function: Callable[[T], R], of: Sequence[T]) -> list[R]:
    """Returns the results of calls for each of them, which wait for each other, at once."""
    with ThreadPoolExecutor(len(of)) as pool:
        return list(pool.map(function, of))


class Threads:
    """A thread for each rank. Rank r uses GPU r modulo `devices`. All threads run the same function at once."""

    def __init__(self, world: int, devices: int = 1) -> None:
        self.devices = [rank % devices for rank in range(world)]
        self.comms = ringreduce.local_group(world, device=self.devices, timeout=LIMIT, max_blocks=BLOCKS)
        self.streams: dict[int, Stream] = {}
        self.each(self._make_stream)

    def _make_stream(self, rank: int) -> float:
        self.streams[rank] = Stream()
        return 0.0

    def each(self, function: Callable[[int], float]) -> list[float]:
        start = threading.Barrier(len(self.comms))

        def main(rank: int) -> float:
            cuda_library.call("choose_device", self.devices[rank])
            start.wait(LIMIT)
            return function(rank)

        return on_threads(main, range(len(self.comms)))

    def contestant(
        self, algorithm: str, count: int, calls: int, collective: str = "all_reduce"
    ) -> Contestant:
        arrays: dict[int, Arrays] = {}
        graphs: dict[int, Graph] = {}

        def capture(rank: int) -> float:
            comm, stream = self.comms[rank], self.streams[rank]
            arrays[rank] = arrays_of(comm, count, collective)
            graphs[rank] = graph_of(comm, arrays[rank], stream, algorithm, calls, collective)
            return 0.0

        def replay(rank: int) -> float:
            stream = self.streams[rank]
            return seconds_on(stream, lambda: graphs[rank].launch(stream))

        def close() -> None:
            for graph in graphs.values():
                graph.close()
            for both in arrays.values():
                for array in both:
                    array.memory.close()

        self.each(capture)
        return Contestant(f"ringreduce {algorithm}", lambda: max(self.each(replay)) / calls, close)


# --- NCCL --------------------------------------------------------------------------------------------------


def version_of_nccl() -> int:
    """Returns the version of the NCCL that the engine finds, or 0 if there is none."""
    for path in (os.environ.get("RINGREDUCE_NCCL_LIBRARY"), "libnccl.so.2", nccl_library.find()):
        try:
            version = ctypes.c_int()
            if path and ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version)) == 0:
                return version.value
        except (OSError, AttributeError):
            continue
    return 0


def threads_over_nccl(world: int, devices: int) -> Threads:
    """Returns a separate group for NCCL, because a call that NCCL rejects ends the group."""
    version = version_of_nccl()
    if not version:
        raise Unavailable("there is no NCCL")
    if devices < world:
        if version < NCCL_THAT_SHARES_A_GPU:
            raise Unavailable(f"NCCL {version} needs a GPU for each rank")
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        if world > 2:  # the thread blocks of all ranks must fit
            os.environ.setdefault("NCCL_MAX_CTAS", str(max(64 // world, 1)))
    return Threads(world, devices)


# --- ranks as processes ------------------------------------------------------------------------------------


NAMES = {"ringreduce": "ringreduce {}, processes", "symmetric": "torch symmetric {}"}


class Processes:
    """A process for each rank, which sleeps while other contestants run. The program is bench/gpu/process.py.

    After `end`, of time.monotonic(), they are unavailable.
    """

    def __init__(self, way: str, world: int, devices: int, end: float) -> None:
        self.way, self.end = way, end
        script = str(Path(__file__).with_name("process.py"))
        place = f"bench/{secrets.token_hex(8)}"
        self.children = [
            subprocess.Popen(
                [sys.executable, script, way, str(rank), str(world), str(rank % devices), place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"},
            )
            for rank in range(world)
        ]
        try:
            self._answers()
        except Unavailable:
            self.close()
            raise

    def tell(self, **order: Any) -> list[float]:
        """Sends an order to all processes, and returns their answers."""
        for child in self.children:
            assert child.stdin
            try:
                child.stdin.write(json.dumps(order) + "\n")
                child.stdin.flush()
            except BrokenPipeError:
                raise Unavailable(f"{self.way}: a rank has ended") from None
        return self._answers()

    def _answers(self) -> list[float]:
        answers = []
        for child in self.children:
            assert child.stdout
            left = min(self.end - time.monotonic(), LIMIT)
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                raise Unavailable(f"{self.way}: a rank has not answered in time")
            answers.append(json.loads(child.stdout.readline() or '{"problem": "it has ended"}'))
        for rank, answer in enumerate(answers):
            if "problem" in answer:
                raise Unavailable(f"{self.way}: rank {rank}: {answer['problem']}")
        return [answer["seconds"] for answer in answers]

    def contestant(self, kind: str, count: int, calls: int) -> Contestant:
        key = f"{kind}/{count}"
        self.tell(do="prepare", key=key, kind=kind, count=count, calls=calls)
        return Contestant(
            NAMES[self.way].format(kind),
            lambda: max(self.tell(do="run", key=key)) / calls,
            lambda: self.drop(key),
        )

    def drop(self, key: str) -> None:
        with suppress(Unavailable):  # which is said already
            self.tell(do="drop", key=key)

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


@contextmanager
def processes(way: str, world: int, devices: int, end: float) -> Iterator[Processes]:
    made = Processes(way, world, devices, end)
    try:
        yield made
    finally:
        made.close()


# --- in one process ----------------------------------------------------------------------------------------


def copies(size: int, stream: Stream) -> list[Contestant]:
    """Returns the contestants that copy one span, which show the time to read and write its bytes."""
    source, target = Memory(size), Memory(size)
    source.fill(0)

    def by_kernel() -> float:
        launch = Launch(stream)
        return seconds_on(stream, lambda: cuda_library.copy([target.address], source.address, size, launch))

    def by_cuda() -> float:
        return seconds_on(stream, lambda: cuda_library.move(target.address, source.address, size, stream))

    return [Contestant("copy kernel", by_kernel), Contestant("cudaMemcpyAsync", by_cuda)]


def stacked(world: int, count: int, calls: int) -> Contestant:
    """Returns torch's obvious all-reduce of arrays that belong to one process."""
    try:
        import torch
    except ImportError:
        raise Unavailable("there is no torch") from None
    if not torch.cuda.is_available():
        raise Unavailable("this torch has no CUDA")
    arrays = [torch.zeros(count, device="cuda") for _ in range(world)]

    def run() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            total = torch.stack(arrays).sum(0)
            for array in arrays:
                array.copy_(total)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls

    return Contestant("torch, stacked", run, arrays.clear)
