"""The ranks' processes: a launcher's, or ones of our own with cores of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # optimizers import it when they are made, for seconds; before ranks are forked, once does

import ringreduce
from ringreduce.launchers import launched
from ringreduce.train.config import Config, ConfigError

__all__ = ["on_ranks"]


def on_ranks(function: Callable[..., Any], config: Config, *args: Any) -> Any:
    """Calls ``function(comm, config, *args)`` on each rank, and returns rank 0's result (a launcher's: the own)."""
    known = launched(os.environ)
    how = {"timeout": config.timeout, "reproducible": config.reproducible or None}
    if known is None:
        # A forked rank could not use the parent's threads.
        torch.set_num_threads(1)
        return ringreduce.run(_on_own_cores, config.ranks, function, config, args, **how)[0]  # type: ignore[arg-type]
    if config.ranks not in (1, known.size):
        raise ConfigError(f"ranks: {known.launcher} has started {known.size}, not {config.ranks}")
    with ringreduce.init(**how) as comm:  # type: ignore[arg-type]
        return _with_threads(comm, function, config, args)


def _on_own_cores(
    comm: ringreduce.Communicator, function: Callable[..., Any], config: Config, args: tuple[Any, ...]
) -> Any:
    """Gives this rank its share of the cores, if there is one for each: ranks that move about disturb each other."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // comm.size
    if share:
        os.sched_setaffinity(0, cores[comm.rank * share : (comm.rank + 1) * share])
        return _with_threads(comm, function, config, args, share)
    return _with_threads(comm, function, config, args)


def _with_threads(
    comm: ringreduce.Communicator, function: Callable[..., Any], config: Config, args: tuple[Any, ...],
    cores: int | None = None,
) -> Any:  # fmt: skip
    if cores is None:
        cores = len(os.sched_getaffinity(0)) // len(comm.hosts[comm.host])
    torch.set_num_threads(config.threads or max(cores, 1))
    return function(comm, config, *args)
