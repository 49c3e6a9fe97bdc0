"""Compares predicted with measured training steps.

    python3 -m bench.training.planned
    python3 -m bench.training.planned --ranks 2 --rounds 9 --model here.json

Each model is recorded on one rank while the others wait. The costs of collectives come from ``ringreduce fit`` on the
same ranks, or from a file. Then all ranks train with each strategy in turn. The time of a step is that of the slowest
rank, and the table shows medians over rounds. If other programs use the cores, ranks compute more slowly side by side
than the one that was recorded. The last column leaves this out: it compares how much longer than ranks that train side
by side, without communication, a step takes.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import ringreduce
from bench.training.data_parallel import KEEP_FREED_MEMORY
from ringreduce.plan import Cluster, Device, predict, read_job, strategy
from ringreduce.studies.model import Model, fit
from ringreduce.text import markdown

STEPS = 3  # that are timed together


class Shape(NamedTuple):
    name: str
    width: int
    layers: int
    samples: int


SHAPES = [
    Shape("communication-bound", 1024, 24, 1),
    Shape("compute-bound", 512, 8, 256),
    Shape("many small tensors", 64, 200, 64),
]
SIDE_BY_SIDE = "side by side"
STRATEGIES = ["data_parallel", "data_parallel:bucket_mb=4", "zero1", "zero2"]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="number of turns of each strategy (7)")
    parser.add_argument("--model", type=Path, help="a model of ringreduce fit; without it, one is fitted")
    parser.add_argument("--budget", type=float, default=0.02, help="seconds for each measurement of the fit")
    return parser.parse_args()


def rank_main(comm: Any, options: Namespace, folder: str) -> list[list[str]]:
    import torch

    torch.set_num_threads(1)
    model = Model.load(options.model) if options.model else fit(comm, options.budget)
    cluster = Cluster(model, Device(kind="cpu"), comm.size)
    rows = []
    for shape in SHAPES:
        path = Path(folder) / f"{shape.width}.json"
        if comm.rank == 0:
            recorded(shape, path)
        comm.barrier()
        measured = times(comm, shape, options.rounds)
        for name in STRATEGIES if comm.rank == 0 else ():
            found = predict(read_job(path), cluster, strategy(name), comm.size)
            rows.append(row(shape.name, name, measured[name], measured[SIDE_BY_SIDE], found))
    return rows


def row(shape: str, name: str, seconds: float, beside: float, found: Any) -> list[str]:
    alone = found.samples / found.world / found.one_rank
    times = (f"{1e3 * each:.2f}" for each in (beside, seconds, alone, found.seconds))
    errors = (found.seconds / seconds - 1, found.seconds / alone / (seconds / beside) - 1)
    return [shape, name, *times, *(f"{100 * error:+.1f} %" for error in errors)]


def recorded(shape: Shape, path: Path) -> None:
    from ringreduce.studies.plan.record import record

    module, optimizer = made(shape)
    step = step_of(module, optimizer, shape)
    with record(path, module, optimizer, shape.samples):
        for _ in range(15):
            step()


def made(shape: Shape) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(shape.width, shape.width) for _ in range(shape.layers)))
    return module, torch.optim.Adam(module.parameters(), lr=1e-4)


def step_of(module: Any, optimizer: Any, shape: Shape) -> Callable[[], None]:
    import torch

    x = torch.randn(shape.samples, shape.width)

    def step() -> None:
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()

    return step


def contestant(name: str, comm: Any, shape: Shape) -> Callable[[], None]:
    import torch

    kind, _, setting = name.partition(":")
    limits = {key: float(value) for key, value in [setting.split("=")]} if setting else {}
    module, optimizer = made(shape)
    stage = {"zero1": 1, "zero2": 2}.get(kind)
    if stage:
        optimizer = ringreduce.ShardedOptimizer(
            module.parameters(), torch.optim.Adam, comm, stage=stage, lr=1e-4
        )
    wrapped = module if stage == 2 else ringreduce.DataParallel(module, comm, **limits)
    return step_of(wrapped, optimizer, shape)


def times(comm: Any, shape: Shape, rounds: int) -> dict[str, float]:
    """Returns the median over rounds of the slowest rank's seconds for a step."""
    steps = {name: contestant(name, comm, shape) for name in STRATEGIES}
    steps[SIDE_BY_SIDE] = step_of(*made(shape), shape)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):  # the first two are warm-up
        for name, step in steps.items():
            comm.barrier()
            start = perf_counter()
            for _ in range(STEPS):
                step()
            found[name].append((perf_counter() - start) / STEPS)
    slowest = comm.all_reduce(np.array(list(found.values()))[:, 2:], "max")
    return {name: float(median(row)) for name, row in zip(found, slowest, strict=True)}


def main() -> None:
    options = parse_arguments()
    os.environ.update(KEEP_FREED_MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        rows = ringreduce.run(rank_main, options.ranks, options, folder, start="spawn")[0]
    heading = [
        "",
        "strategy",
        "side by side, ms",
        "measured, ms",
        "recorded, ms",
        "predicted, ms",
        "error",
        "beside",
    ]
    print(f"{options.ranks} ranks of one host\n\n{markdown([heading, *rows])}\n")
    for place, what in ((-2, "of the step"), (-1, "beside ranks side by side")):
        errors = sorted(abs(float(each[place].split()[0])) for each in rows)
        print(f"error {what}: median {median(errors):.1f} %, largest {errors[-1]:.1f} %")


if __name__ == "__main__":
    main()
