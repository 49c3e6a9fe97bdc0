"""The table "What is served" of docs/gpu.md: every operation is called on every path, and the answer is its cell.

python -m tests.gpu.served prints the tables; tests/gpu/test_served.py compares them with the page."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ringreduce
from tests.communicator.collectives import test_custom as custom

from .gpu_arrays import GpuArray, library, new_stream, wait_for
from .ranks import LIBRARIES
from .test_hosts import answers

WORLD = 2
PATHS = {
    "CPU": {},
    "kernels": {"RINGREDUCE_EMULATED_BLOCKS": "64"},
    "NCCL": {"RINGREDUCE_GPU_TRANSPORT": "nccl"},
}
HOSTS = "several hosts without NCCL"
NCCL_LIBRARY = {"RINGREDUCE_NCCL_LIBRARY": str(LIBRARIES / "libnccl_emulated.so")}
COUNT = 300


class Rank:
    """One rank's communicator, and its arrays on a path: the CPU's, or the emulated GPU's."""

    def __init__(self, comm: Any, on_gpu: bool) -> None:
        self.comm, self.rank, self.world, self.on_gpu = comm, comm.rank, comm.size, on_gpu

    def new(self, values: Any, dtype: str = "float32") -> Any:
        data = np.array(values, dtype)
        return GpuArray(data) if self.on_gpu else data

    def room(self, count: int, dtype: str = "float32") -> Any:
        return self.new(np.zeros(count), dtype)

    def own(self, count: int = COUNT, dtype: str = "float32") -> Any:
        return self.new(self.values(self.rank, count), dtype)

    def values(self, rank: int, count: int = COUNT) -> Any:
        return np.arange(count) % 5 + rank + 1.0

    def total(self, count: int = COUNT) -> Any:
        return sum(self.values(rank, count) for rank in range(self.world))

    def is_equal(self, array: Any, wanted: Any) -> None:
        got = array.get(self.comm) if self.on_gpu else array
        assert (got == np.asarray(wanted, got.dtype)).all(), (got, wanted)


# --- the operations ----------------------------------------------------------------------------------------


def all_reduce(on: Rank, **how: Any) -> None:
    x = on.own()
    on.comm.all_reduce(x, **how)
    on.is_equal(x, on.total())


def average(on: Rank) -> None:
    x = on.own()
    on.comm.all_reduce(x, "avg")
    on.is_equal(x, on.total() / on.world)


def factor(on: Rank) -> None:
    x = on.own()
    on.comm.all_reduce(x, factor=0.5)
    on.is_equal(x, on.total() / 2)


def bitwise(on: Rank) -> None:
    x = on.own(dtype="int32")
    on.comm.all_reduce(x, "bor")
    on.is_equal(x, np.bitwise_or.reduce([on.values(rank).astype("int32") for rank in range(on.world)]))


def narrow_integers(on: Rank) -> None:
    x = on.own(dtype="int16")
    on.comm.all_reduce(x)
    on.is_equal(x, on.total())


def reduce_scatter(on: Rank) -> None:
    out = on.room(COUNT // on.world)
    on.comm.reduce_scatter(on.own(), out=out)
    on.is_equal(out, np.split(on.total(), on.world)[on.rank])


def all_gather(on: Rank) -> None:
    out = on.room(COUNT * on.world)
    on.comm.all_gather(on.own(), out=out)
    on.is_equal(out, np.concatenate([on.values(rank) for rank in range(on.world)]))


def broadcast(on: Rank) -> None:
    x = on.own()
    on.comm.broadcast(x, 1)
    on.is_equal(x, on.values(1))


def reduce(on: Rank) -> None:
    x = on.own()
    on.comm.reduce(x, 1)
    if on.rank == 1:
        on.is_equal(x, on.total())


def gather(on: Rank) -> None:
    out = on.room(COUNT * on.world) if on.rank == 1 else None
    on.comm.gather(on.own(), 1, out=out)
    if out is not None:
        on.is_equal(out, np.concatenate([on.values(rank) for rank in range(on.world)]))


def scatter(on: Rank) -> None:
    out = on.room(COUNT // on.world)
    on.comm.scatter(on.own() if on.rank == 1 else None, 1, out=out)
    on.is_equal(out, np.split(on.values(1), on.world)[on.rank])


def all_to_all(on: Rank) -> None:
    out = on.room(COUNT)
    on.comm.all_to_all(on.own(), out=out)
    on.is_equal(out, np.concatenate([np.split(on.values(r), on.world)[on.rank] for r in range(on.world)]))


def scan(on: Rank) -> None:
    x = on.own()
    on.comm.scan(x)
    on.is_equal(x, sum(on.values(rank) for rank in range(on.rank + 1)))


def exscan(on: Rank) -> None:
    x = on.own()
    on.comm.exscan(x, "max")
    before = [on.values(rank) for rank in range(on.rank)]
    on.is_equal(x, np.max(before, axis=0) if before else np.full(x.shape, -np.inf))


def uneven_all_gather(on: Rank) -> None:
    counts = [10 * rank + 5 for rank in range(on.world)]
    out = on.room(sum(counts))
    on.comm.all_gather(on.own(counts[on.rank]), out=out, counts=counts)
    on.is_equal(out, np.concatenate([on.values(rank, count) for rank, count in enumerate(counts)]))


def uneven_reduce_scatter(on: Rank) -> None:
    counts = [10 * rank + 5 for rank in range(on.world)]
    out = on.room(counts[on.rank])
    on.comm.reduce_scatter(on.own(sum(counts)), out=out, counts=counts)
    on.is_equal(out, np.split(on.total(sum(counts)), np.cumsum(counts)[:-1])[on.rank])


def uneven_all_to_all(on: Rank) -> None:
    sizes = [[10 * to + 5 + rank for to in range(on.world)] for rank in range(on.world)]
    came = [sizes[rank][on.rank] for rank in range(on.world)]
    out = on.room(sum(came))
    x = on.own(sum(sizes[on.rank]))
    on.comm.all_to_all(x, out=out, send_counts=sizes[on.rank], recv_counts=came)
    blocks = [
        np.split(on.values(rank, sum(sizes[rank])), np.cumsum(sizes[rank])[:-1])[on.rank]
        for rank in range(on.world)
    ]
    on.is_equal(out, np.concatenate(blocks))


def named_algorithm(on: Rank) -> None:
    all_reduce(on, algorithm="ring")


def own_function(on: Rank) -> None:
    all_reduce(on, algorithm=custom.everybody)


def native_nccl(on: Rank) -> None:
    all_reduce(on, algorithm="nccl")


def wire(on: Rank, dtype: str = "float32", name: str = "bf16") -> None:
    x = on.new(np.ones(COUNT), dtype)
    on.comm.all_reduce(x, wire=name)
    on.is_equal(x, np.full(COUNT, on.world))


def wire_of_halves(on: Rank) -> None:
    wire(on, "float16", "fp8")


def asynchronous(on: Rank) -> None:
    x = on.own()
    on.comm.all_reduce(x, async_op=True).wait()
    on.is_equal(x, on.total())


def captured(on: Rank) -> None:
    if not on.on_gpu:
        raise ValueError("graphs are CUDA's")
    all_reduce(on)  # which must be over before the graph runs
    x, stream = on.own(), new_stream()
    on.comm.barrier()
    with library().captured(stream) as graph:
        on.comm.all_reduce(x, stream=stream.handle.value)
    graph.launch(stream)
    wait_for(stream.handle.value)
    on.is_equal(x, on.total())
    on.comm.barrier()
    graph.close()


def messages(on: Rank) -> None:
    x, came = on.own(), on.room(COUNT)
    peer = 1 - on.rank
    sent = on.comm.send(x, peer, tag=3, async_op=True)
    on.comm.recv(came, peer, tag=3)
    sent.wait()
    on.is_equal(came, on.values(peer))


def untagged_messages(on: Rank) -> None:
    x, came = on.own(), on.room(COUNT)
    peer = 1 - on.rank
    for turn in (0, 1):  # over NCCL, two ranks that both send first wait for each other
        if turn == on.rank:
            on.comm.send(x, peer, tag=None)
        else:
            on.comm.recv(came, peer, tag=None)
    on.is_equal(came, on.values(peer))


def split(on: Rank) -> None:
    with on.comm.split(0) as part:
        x = on.own()
        part.all_reduce(x)
        got = x.get(part) if on.on_gpu else x
        assert (got == on.total()).all()


def registered(on: Rank) -> None:
    x = on.own()
    on.comm.register(x)
    on.comm.all_reduce(x)
    on.is_equal(x, on.total())
    on.comm.deregister(x)


def by_copy_engine(on: Rank) -> None:
    with on.comm.split(0, max_blocks=0) as group:
        x, out = on.own(), on.room(COUNT * on.world)
        group.register(x)
        group.all_gather(x, out=out)
        wanted = np.concatenate([on.values(rank) for rank in range(on.world)])
        assert (out.get(group) == wanted).all()


OPERATIONS: dict[str, Callable[[Rank], None]] = {
    "`all_reduce`": all_reduce,
    "`reduce_scatter`": reduce_scatter,
    "`all_gather`": all_gather,
    "`broadcast`": broadcast,
    "`reduce`": reduce,
    "`gather`": gather,
    "`scatter`": scatter,
    "`all_to_all`": all_to_all,
    "`scan`": scan,
    "`exscan`": exscan,
    "uneven `all_gather`": uneven_all_gather,
    "uneven `reduce_scatter`": uneven_reduce_scatter,
    "uneven `all_to_all`": uneven_all_to_all,
    '`op="avg"`': average,
    '`op="bor"` and other bitwise ops': bitwise,
    "`factor`": factor,
    "int16 and other dtypes that NCCL lacks": narrow_integers,
    "`wire` of float32": wire,
    "`wire` of float16 and bfloat16": wire_of_halves,
    "an algorithm by its name": named_algorithm,
    "a function as algorithm": own_function,
    '`algorithm="nccl"`': native_nccl,
    "`async_op=True`": asynchronous,
    "CUDA graphs": captured,
    "`send`, `recv`": messages,
    "`send`, `recv` with `tag=None`": untagged_messages,
    "`split`": split,
    "`register`, `deregister`": registered,
    "`all_gather` of registered arrays, with `max_blocks=0`": by_copy_engine,
}
HOST_ONLY = {"`send`, `recv`": "through CPU memory"}


# --- the table -----------------------------------------------------------------------------------------------


def answer(operation: Callable[[Rank], None], path: str) -> str:
    """ "yes", or why not."""
    library()
    on_gpu = path != "CPU"
    comms = ringreduce.local_group(WORLD, device=0 if on_gpu else None, timeout=20)
    refusals: list[BaseException | None] = [None] * WORLD

    def main(comm: Any) -> None:
        try:
            with comm:
                operation(Rank(comm, on_gpu))
        except BaseException as error:
            refusals[comm.rank] = error

    threads = [threading.Thread(target=main, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in refusals:
        if not isinstance(error, (ValueError, type(None))):
            raise error
    assert all(bool(one) == bool(refusals[0]) for one in refusals), refusals
    return str(refusals[0]) if refusals[0] else "yes"


def answers_on(path: str) -> dict[str, str]:
    """Of all operations, by their names."""
    if path == HOSTS:
        of_ranks = [json.loads(lines[-1]) for lines in answers("ab", "served_operations")]
        assert of_ranks[0] == of_ranks[1], of_ranks
        return dict(of_ranks[0])
    settings = {**NCCL_LIBRARY, **PATHS[path]}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        return {name: answer(operation, path) for name, operation in OPERATIONS.items()}
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def table() -> str:
    """In Markdown. Reasons are numbered."""
    reasons: list[str] = []
    paths = [*PATHS, HOSTS]
    lines = [f"| | {' | '.join(paths)} |", "|---|" + "---|" * len(paths)]
    cells: dict[str, list[str]] = {name: [] for name in OPERATIONS}
    for path in paths:
        for name, found in answers_on(path).items():
            if found != "yes":
                if found not in reasons:
                    reasons.append(found)
                found = f"no ({reasons.index(found) + 1})"
            elif path != "CPU" and name in HOST_ONLY:
                found = HOST_ONLY[name]
            cells[name].append(found)
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]
    return "\n".join([*lines, "", *(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))])


PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- served -->\n", "<!-- end of served -->\n"


def in_page(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    made = table()
    print(made)
    if sys.argv[1:] == ["--write"]:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{made}\n{END}{rest.partition(END)[2]}")
