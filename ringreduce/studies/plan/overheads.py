"""Measures how long the code of strategies takes on this machine's processor.

    python -m ringreduce.studies.plan.overheads Adam

Small models make steps on one rank, with each strategy and without. The difference is the time of the strategy's own
code: its hooks, its copies of small tensors, and its tensors' types. Collectives do nothing meanwhile. This runs in a
process of its own, because FSDP2 and DDP need torch's default group, which the calling process may have.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
import torch

from ringreduce.studies.plan.job import Overhead
from ringreduce.training.foundation.part import options

__all__ = ["clock_of", "measured_overheads", "tensor_seconds"]

SHAPES = ((2, 1), (2, 8), (12, 1))  # units, and linear layers in each
WIDTH, ROUNDS = 16, 12
TENSORS = 32
STRATEGIES = ("ddp", "data_parallel", "zero1", "zero2", "fsdp2", "local_sgd", "diloco")


@cache
def measured_overheads(optimizer_class: str) -> dict[str, Overhead]:
    """Returns the time of each strategy's own code with an optimizer of torch, measured in some seconds."""
    command = [sys.executable, "-m", __name__, optimizer_class]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Overhead.model_validate(one) for name, one in found.items()}


def clock_of(device: Any) -> Callable[[], float]:
    """Returns the clock that times computations, in seconds.

    If one thread computes, it is the processor's: whoever else uses the core does not count. On a GPU, it is read when
    the device is done.
    """
    if device.type == "cuda":

        def when_done() -> float:
            torch.cuda.synchronize(device)
            return perf_counter()

        return when_done
    return process_time if torch.get_num_threads() == 1 else perf_counter


def tensor_seconds(optimizer: Any, device: Any) -> float:
    """Returns how long a step of an optimizer takes for each tensor, however small.

    It is 0 if there can be no other optimizer of this class with the same options.
    """
    small = [torch.nn.Parameter(torch.zeros(1, device=device)) for _ in range(TENSORS)]
    try:
        like = type(optimizer)([{**options(optimizer.param_groups[0]), "params": small}])
    except TypeError:
        return 0.0
    for one in small:
        one.grad = torch.zeros_like(one)
    # One thread works on so small a tensor, so its clock does not count what else uses the cores.
    times, clock = [], thread_time if device.type == "cpu" else clock_of(device)
    for _ in range(ROUNDS):
        began = clock()
        like.step()
        times.append(clock() - began)
    return median(times) / TENSORS


def _steps(
    name: str, shape: tuple[int, int], optimizer_class: Any, alone: Any
) -> Callable[[], tuple[float, float]]:
    """Returns a function that makes a step, and returns the seconds of its passes and of its updates."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import ringreduce
    from ringreduce import low_communication

    units, each = shape
    model: Any = torch.nn.Sequential(
        *(torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(each))) for _ in range(units))
    )
    if name == "fsdp2":
        mesh = init_device_mesh("cpu", (2,))
        for unit in [*model, model]:
            fully_shard(unit, mesh=mesh)
    optimizer, then = optimizer_class(model.parameters()), None
    if name in ("zero1", "zero2"):
        optimizer = ringreduce.ShardedOptimizer(
            model.parameters(), optimizer_class, alone, stage=int(name[-1])
        )
    if name == "local_sgd":
        then = low_communication.LocalSGD(model.parameters(), alone, every=1).step
    if name == "diloco":
        then = low_communication.DiLoCo(model.parameters(), alone, every=1).step
    if name == "ddp":
        model = DistributedDataParallel(model)
        model.register_comm_hook(
            None, _at_once
        )  # the group's own collectives have no future, which DDP needs
    if name in ("data_parallel", "zero1"):
        model = ringreduce.DataParallel(model, alone)
    x = torch.randn(1, WIDTH)

    def step() -> tuple[float, float]:
        began = thread_time()
        optimizer.zero_grad()
        model(x).sum().backward()
        passed = thread_time()
        optimizer.step()
        if then is not None:
            then()
        return passed - began, thread_time() - passed

    return step


def _at_once(_state, bucket):  # type: ignore[no-untyped-def]  # torch accepts only its own annotations
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _fitted(extra: Sequence[tuple[float, float]], has_units: bool) -> Overhead:
    """Returns the overhead from the additional seconds of passes and updates of each shape."""
    rows = np.array([[1.0, units * has_units, 2 * units * each] for units, each in SHAPES])
    passes, updates = np.array(extra).T
    step_s, unit_s, tensor_s = np.maximum(np.linalg.lstsq(rows, passes, rcond=None)[0], 0)
    once_s, update_s = np.maximum(np.linalg.lstsq(rows[:, ::2], updates, rcond=None)[0], 0)
    return Overhead(step_s=step_s + once_s, tensor_s=tensor_s, unit_s=unit_s, update_s=update_s)


def main() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ringreduce.start.local import local_group

    optimizer_class = getattr(torch.optim, sys.argv[1], torch.optim.Adam)
    torch.set_num_threads(1)
    # A group of two ranks, so that FSDP2 does all that it does for several, whose collectives return at once.
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    extra: dict[str, list[tuple[float, float]]] = {name: [] for name in STRATEGIES}
    with local_group(1)[0] as alone:
        for shape in SHAPES:
            steps = {name: _steps(name, shape, optimizer_class, alone) for name in ("", *STRATEGIES)}
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
            for _ in range(ROUNDS):  # in turn, so that a disturbance affects all
                for name, step in steps.items():
                    times[name].append(step())
            middle = {name: np.median(found[2:], axis=0) for name, found in times.items()}
            for name in STRATEGIES:
                extra[name].append(tuple(middle[name] - middle[""]))
    torch.distributed.destroy_process_group()
    found = {name: _fitted(rows, name == "fsdp2").model_dump() for name, rows in extra.items()}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
