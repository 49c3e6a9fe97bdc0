"""One rank of torch_backend.py. All contestants run in the same processes, each with its own group."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ringreduce
from bench.turns import chain, in_turns, rotated, step_of
from ringreduce.bench import gloo
from ringreduce.bench.problem import BLOCKWISE, Problem
from ringreduce.bench.protocol import Buffers, Effort, Library, measure

WIDTH, LAYERS = 1024, 24
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
STEP_KINDS = {"ddp": 1, "ddp, 16 samples": 16, "fsdp2": 1}  # with the samples per rank and step
STEPS, ROUNDS = 5, 9  # steps that are timed together, and how often
SHARED = "ringreduce.empty"  # ours with buffers that peers reach from the beginning
SILENT = "no communication"  # every rank trains the same model alone: the least time of a step

Line = dict[str, Any]
Groups = dict[str, dist.ProcessGroup]


@dataclass(frozen=True)
class Task:
    """What the ranks measure. It is the same on all ranks.

    Attributes:
        backends: For each contestant, the backend of its group and its environment variables.
        problems: The problems, in the order in which they are measured.
        steps: The training steps to time, from STEP_KINDS.
        budget: Seconds for each figure.
        turn: How far to rotate the order of the contestants.
    """

    backends: dict[str, tuple[str, dict[str, str]]]
    problems: tuple[Problem, ...]
    steps: tuple[str, ...]
    budget: float
    turn: int


def rank_main(comm: Any, task: Task, store: str) -> list[Line]:
    gloo.join(comm.rank, comm.size, store)
    groups = {name: _new_group(*how) for name, how in task.backends.items()}
    lines = [
        line for index, problem in enumerate(task.problems) for line in _calls(groups, task, index, problem)
    ]
    for kind in task.steps:
        lines += _steps(groups, kind, task.turn)
    dist.barrier()
    dist.destroy_process_group()
    return lines


def _new_group(backend: str, environment: dict[str, str]) -> dist.ProcessGroup:
    with _environment(environment):
        group = dist.new_group(backend=backend)
        dist.barrier(group)
    return group


@contextmanager
def _environment(values: dict[str, str]) -> Any:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


# --- calls -----------------------------------------------------------------------------------------------------


def _calls(groups: Groups, task: Task, index: int, problem: Problem) -> list[Line]:
    lines = []
    for name in rotated(groups, index + task.turn):
        library = _library(name, groups[name])
        line = measure(library, Buffers(library, problem), Effort(task.budget))
        lines.append({**line, "collective": kind_of(problem)})
    return lines


def kind_of(problem: Problem) -> str:
    """Returns the name under which the figures of a problem are listed."""
    separate = problem.collective in BLOCKWISE and not problem.in_place
    return f"{problem.collective}, separate" if separate else problem.collective


def _library(name: str, group: dist.ProcessGroup) -> Library:
    def prepare(problem: Problem, buffer: np.ndarray) -> tuple[Callable[[], Any], np.ndarray]:
        return gloo.prepare(problem, buffer, group)

    barrier = lambda: dist.barrier(group)  # noqa: E731
    place = dist.get_rank(), dist.get_world_size()
    # gloo.maximum uses the default group, which is not measured.
    allocate = _allocate_shared if name == SHARED else _allocate
    return Library(name, *place, barrier, gloo.maximum, prepare, allocate)


def _allocate_shared(nbytes: int) -> np.ndarray:
    return ringreduce.zeros(nbytes, dtype=np.uint8)


def _allocate(nbytes: int) -> np.ndarray:
    """Allocates memory with torch, because NumPy would use huge pages and torch does not."""
    return torch.zeros(nbytes, dtype=torch.uint8).numpy()


# --- training steps --------------------------------------------------------------------------------------------


def _ddp(group: dist.ProcessGroup) -> nn.Module:
    return DistributedDataParallel(chain(WIDTH, LAYERS), process_group=group, gradient_as_bucket_view=True)


def fsdp2(group: dist.ProcessGroup) -> nn.Module:
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    model = chain(WIDTH, LAYERS)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _steps(groups: Groups, kind: str, turn: int) -> list[Line]:
    """Returns a line per contestant, in microseconds per step. The contestants take turns, a few steps each."""
    build, samples = fsdp2 if kind == "fsdp2" else _ddp, STEP_KINDS[kind]
    steps = {name: step_of(build(group), samples, WIDTH) for name, group in groups.items() if name != SHARED}
    steps[SILENT] = step_of(chain(WIDTH, LAYERS), samples, WIDTH)
    times = in_turns(steps, ROUNDS, STEPS, dist.barrier, lambda names, number: rotated(names, turn + number))
    lines = []
    for name, mine in times.items():
        slowest = gloo.maximum(np.array(mine))
        p25, median, p75 = (float(q) * 1e6 for q in np.quantile(slowest, [0.25, 0.5, 0.75]))
        line = {"library": name, "collective": kind, "ranks": dist.get_world_size(), "bytes": 4 * PARAMETERS}
        lines.append({**line, "median_us": median, "p25_us": p25, "p75_us": p75, "wrong": 0})
    return lines
