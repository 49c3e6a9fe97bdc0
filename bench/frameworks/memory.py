"""What memory costs that moves when it is communicated: beside ordinary memory, and beside jemalloc if it is installed.

    python3 -m bench.frameworks.memory
    python3 -m bench.frameworks.memory --launches 5 --gib 4

Training steps of one rank without communication, forks of a process with large tensors, and the first calls of a
tensor. Contestants take turns, each launch in new processes; medians, with their range over the launches.
"""

from __future__ import annotations

import os
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import ringreduce
from bench.turns import rotated
from ringreduce.text import markdown

MOVING, ORDINARY, JEMALLOC = "moving", "ordinary", "ordinary, jemalloc"
PLACES = [Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu")]
LIBRARY = next((path for place in PLACES if (path := place / "libjemalloc.so.2").exists()), None)
COMMUNICATED = 100 << 20  # bytes, in pieces
PIECES = 10
SIZES = (256 << 10, 1 << 20, 4 << 20, 32 << 20)


def models() -> dict[str, Callable[[], Any]]:
    from torch import nn

    def layers(width: int, depth: int) -> Any:
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))), (1, width)

    def convolutions() -> Any:
        layers = [nn.Conv2d(3 if depth == 0 else 32, 32, 3, padding=1) for depth in range(4)]
        return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU()))), (8, 3, 64, 64)

    def attention() -> Any:
        return nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True), (8, 128, 256)

    return {
        "24 layers of 1024 (25 M)": lambda: layers(1024, 24),
        "6 layers of 2048 (25 M)": lambda: layers(2048, 6),
        "4 convolutions, 8 x 64 x 64": convolutions,
        "an attention layer, 8 x 128 x 256": attention,
    }


def trained(build: Callable[[], Any], seconds: float) -> float:
    """Microseconds of a training step, the median."""
    import torch

    model, shape = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    ends = perf_counter() + seconds
    while perf_counter() < ends or len(times) < 5:
        start = perf_counter()
        optimizer.zero_grad()
        model(torch.ones(shape)).square().mean().backward()
        optimizer.step()
        times.append(perf_counter() - start)
    return statistics.median(times[len(times) // 4 :]) * 1e6


def forked(gib: float) -> dict[str, float]:
    """Microseconds of a fork whose child ends at once, with and without 100 MiB that was communicated."""
    import torch
    import torch.distributed as dist

    kept = torch.ones(1 + int(gib * (1 << 28)))
    pieces = [torch.ones(COMMUNICATED // PIECES // 4) for _ in range(PIECES)]

    def fork() -> float:
        times = []
        for _ in range(5):
            start = perf_counter()
            child = os.fork()
            if child == 0:
                os._exit(0)
            times.append(perf_counter() - start)
            os.waitpid(child, 0)
        return statistics.median(times) * 1e6

    before = fork()
    for _ in range(3):
        for piece in pieces:
            dist.all_reduce(piece, dist.ReduceOp.MAX)
    assert kept[0] == 1
    return {"before": before, "after": fork()}


def first_calls(nbytes: int) -> list[float]:
    """Microseconds of the first calls of a tensor that is new, and the median of later ones: of several tensors."""
    import torch
    import torch.distributed as dist

    kept, calls = [], []
    for _ in range(6):
        kept.append(torch.ones(nbytes // 4))
        times = []
        for _ in range(10):
            dist.barrier()
            start = perf_counter()
            dist.all_reduce(kept[-1], dist.ReduceOp.MAX)
            times.append((perf_counter() - start) * 1e6)
        calls.append([*times[:3], statistics.median(times[3:])])
    return [float(us) for us in np.median(calls[1:], axis=0)]


def rank_main(comm: Any, folder: str, gib: float, seconds: float) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("ringreduce", f"file://{folder}", rank=comm.rank, world_size=comm.size)
    found: dict[str, Any] = {"calls": {nbytes: first_calls(nbytes) for nbytes in SIZES}}
    found["fork"] = forked(gib if comm.rank == 0 else 0.0)
    dist.barrier()
    if comm.rank == 0:
        found["steps"] = {name: trained(build, seconds) for name, build in models().items()}
    dist.barrier()
    dist.destroy_process_group()
    return found


def launch(kind: str, gib: float, seconds: float) -> dict[str, Any]:
    import tempfile

    values = {"RINGREDUCE_TORCH_MEMORY": kind.split(",")[0]}
    if kind == JEMALLOC:
        values["LD_PRELOAD"] = str(LIBRARY)
    os.environ.update(values)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return ringreduce.run(rank_main, 2, f"{folder}/store", gib, seconds, start="spawn")[0]
    finally:
        for name in values:
            del os.environ[name]


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--gib", type=float, default=4.0, help="GiB of tensors in the process that forks (4)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each model (2)")
    options = parser.parse_args()
    kinds = [MOVING, ORDINARY, *([JEMALLOC] if LIBRARY else [])]
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(options.launches):
        for kind in rotated(kinds, number):
            print(f"launch {number + 1} of {options.launches}: {kind}", file=sys.stderr, flush=True)
            found[kind].append(launch(kind, options.gib, options.seconds))

    def cell(kind: str, read: Callable[[dict[str, Any]], float]) -> str:
        values = sorted(read(one) for one in found[kind])
        return f"{statistics.median(values):,.0f} ({values[0]:,.0f} to {values[-1]:,.0f})"

    rows = [["us", *kinds]]
    for name in found[MOVING][0]["steps"]:
        rows.append([f"step: {name}", *(cell(kind, lambda one, n=name: one["steps"][n]) for kind in kinds)])
    for when, what in (("before", "nothing"), ("after", "100 MiB")):
        text = f"fork, {options.gib:g} GiB of which {what} was communicated"
        rows.append([text, *(cell(kind, lambda one, w=when: one["fork"][w]) for kind in kinds)])
    for nbytes in SIZES:
        for call, what in enumerate(("first call", "second", "third", "later")):
            text = f"all_reduce of a new tensor, {nbytes >> 10} KiB: {what}"
            rows.append(
                [text, *(cell(kind, lambda one, n=nbytes, c=call: one["calls"][n][c]) for kind in kinds)]
            )
    print(markdown(rows))


if __name__ == "__main__":
    main()
