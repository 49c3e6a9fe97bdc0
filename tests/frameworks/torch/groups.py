"""Ways to run every rank of a process group inside one test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import ringreduce

TIMEOUT = 30.0  # seconds, of each operation


def on_process_group(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    backend: str = "ringreduce",
    timeout: float = TIMEOUT,
    hosts: str = "",
) -> list[Any]:
    """Runs function(*args) in forked ranks whose default process group is ours; results in rank order.

    Ranks with the same letter of ``hosts`` share a host.
    """
    import torch

    torch.set_num_threads(1)  # a forked rank may not start the parent's parallel regions again
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        return ringreduce.run(
            _rank, world, function, str(store), backend, timeout, hosts, args, timeout=timeout
        )


def _rank(
    comm: Any,
    function: Callable[..., Any],
    store: str,
    backend: str,
    timeout: float,
    hosts: str,
    args: tuple[Any, ...],
) -> Any:
    import torch.distributed as dist

    if hosts:
        os.environ["RINGREDUCE_HOST"] = hosts[comm.rank]
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=comm.rank,
        world_size=comm.size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        return function(*args)
    finally:
        dist.destroy_process_group()


def is_shared(tensor):
    with open("/proc/self/maps") as maps:
        for line in maps:
            places, *_, name = line.split(maxsplit=5)
            start, end = (int(place, 16) for place in places.split("-"))
            if start <= tensor.data_ptr() < end:
                return "memfd:ringreduce" in name
    return False
