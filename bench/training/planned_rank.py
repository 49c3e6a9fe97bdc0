"""One rank of planned.py: fits the costs of collectives, records each model, and measures its steps."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ringreduce
from bench.training.between_hosts import add_rank_options, joined
from bench.turns import chain, in_turns, step_of
from ringreduce.plan import read_job
from ringreduce.studies.model import Model, fit

SIDE_BY_SIDE, RECORDED = "side by side", "recorded"
EVERY = 4  # steps that are timed together: DiLoCo synchronises in one of them
STRATEGIES = [
    "ddp", "data_parallel", "zero1", "zero2", "fsdp2", "bf16", "power_sgd", f"diloco:every={EVERY}",
]  # fmt: skip
# Sizes at which the costs between hosts are measured: with delays, all of them would take minutes.
BETWEEN = (16, 768, 12 << 10, 96 << 10, 768 << 10, 3 << 20, 12 << 20)


class Shape(NamedTuple):
    name: str
    width: int
    layers: int
    samples: int


SHAPES = [
    Shape("communication-bound", 1024, 12, 1),
    Shape("compute-bound", 512, 8, 256),
    Shape("many small tensors", 64, 200, 64),
]


def planned(comm: Any, options: Namespace, folder: Path) -> list[dict[str, Any]]:
    """Returns what each turn measured: the costs of collectives, the recorded models, and the times of their steps."""
    import torch

    from ringreduce import elastic

    torch.set_num_threads(1)
    elastic.init_process_group(comm)
    turns = [turn(comm, options, folder) for _ in range(options.turns)]
    torch.distributed.destroy_process_group()
    return turns


def turn(comm: Any, options: Namespace, folder: Path) -> dict[str, Any]:
    """Fits the costs of collectives, records the models, and measures their steps, all within a few minutes."""
    from ringreduce.studies.plan.overheads import measured_overheads

    measured_overheads.cache_clear()
    hosts, each = len(comm.hosts), comm.size // len(comm.hosts)
    costs = (
        Model.load(options.model)
        if options.model
        else fit(comm, options.budget / options.turns, BETWEEN if hosts > 1 else None, training=True)
    )
    models = []
    for shape in SHAPES:
        job, found = measured(comm, shape, options, folder / f"{shape.width}-{comm.rank}.json")
        models.append({"shape": shape.name, "job": job, "times": found})
    return {
        "world": comm.size, "ranks_per_host": each, "machine_cores": os.cpu_count() or 1,
        "costs": costs.model_dump(exclude_none=True), "models": models,
    }  # fmt: skip


def made(shape: Shape) -> tuple[Any, Any]:
    import torch

    module = chain(shape.width, shape.layers)
    return module, torch.optim.Adam(module.parameters(), lr=1e-4)


def contestant(name: str, comm: Any, shape: Shape) -> Callable[[], None]:
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from ringreduce import compression
    from ringreduce.low_communication import DiLoCo

    kind, *settings = name.split(":")
    options: dict[str, Any] = {
        key: float(value) for key, _, value in (one.partition("=") for one in settings)
    }
    module, optimizer = made(shape)
    size = shape.samples, shape.width
    if kind == "ddp":
        return step_of(DistributedDataParallel(module), *size, optimizer)
    if kind == "fsdp2":
        for layer in module:
            fully_shard(layer)
        fully_shard(module)
        return step_of(module, *size, torch.optim.Adam(module.parameters(), lr=1e-4))
    if kind == "diloco":
        return step_of(module, *size, optimizer, DiLoCo(module.parameters(), comm, every=EVERY).step)
    if stage := {"zero1": 1, "zero2": 2}.get(kind):
        optimizer = ringreduce.ShardedOptimizer(
            module.parameters(), torch.optim.Adam, comm, stage=stage, lr=1e-4
        )
    if stage == 2:
        return step_of(module, *size, optimizer)
    wrapped = ringreduce.DataParallel(module, comm, wire="bf16" if kind == "bf16" else None, **options)
    if kind == "power_sgd":
        wrapped.register_comm_hook(compression.PowerSGD(comm), compression.hook)
    return step_of(wrapped, *size, optimizer)


def measured(
    comm: Any, shape: Shape, options: Namespace, path: Path
) -> tuple[dict[str, Any] | None, dict[str, list[float]]]:
    """Returns the job that rank 0 has recorded, as in its file, and the slowest rank's seconds for a step with each
    strategy, for each round.

    Steps that are recorded take turns with those of the strategies: for seconds, the memory of shared machines is a
    third slower. All ranks record, because they share the memory, its bandwidth and caches.
    """
    from ringreduce.studies.plan.record import record

    def alone() -> tuple[Any, Any, Callable[[], None]]:
        module, optimizer = made(shape)
        return module, optimizer, step_of(module, shape.samples, shape.width, optimizer)

    steps = {name: contestant(name, comm, shape) for name in options.strategies}
    steps[SIDE_BY_SIDE] = alone()[-1]
    module, optimizer, steps[RECORDED] = alone()
    with record(path, module, optimizer, shape.samples):
        found = in_turns(steps, options.rounds, EVERY, comm.barrier, lead=1)
    del found[RECORDED]
    slowest = comm.all_reduce(np.array(list(found.values())), "max")
    job = read_job(path).model_dump(exclude_defaults=True) if comm.rank == 0 else None
    return job, dict(zip(found, slowest.tolist(), strict=True))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--turns", type=int, default=3, help="how often all is recorded, fitted and measured (3)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each strategy in a turn (3)")
    parser.add_argument("--model", type=Path, help="a model of ringreduce fit; without it, one is fitted")
    parser.add_argument("--budget", type=float, default=0.02, help="seconds for each measurement of the fits")
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=STRATEGIES)


def main() -> None:
    """Runs a rank on one of several hosts. The first prints the turns as JSON."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    add_rank_options(parser)
    parser.add_argument("--ranks", type=int, required=True)
    options = parser.parse_args()
    with joined(options, options.ranks, 120.0) as (comm, _):
        turns = planned(comm, options, options.folder)
    if options.rank == 0:
        print(json.dumps(turns), flush=True)


if __name__ == "__main__":
    main()
