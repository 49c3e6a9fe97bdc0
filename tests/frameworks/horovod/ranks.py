"""Ranks that call Horovod's API."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import sys
from collections.abc import Callable
from typing import Any

import ringreduce
from ringreduce.horovod import job
from tests.processes import Processes


def on_ranks(ranks: int, function: Callable[..., Any], *args: Any, **variables: str) -> list[Any]:
    """Runs function(*args) on the ranks of a new job, with environment variables; results in rank order."""
    return ringreduce.run(_main, ranks, function, args, variables, timeout=60)


def _main(comm: Any, function: Callable[..., Any], args: Any, variables: dict[str, str]) -> Any:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    os.environ.update(variables)
    sets = variables.get("sets", "")
    job.init(comm, process_sets=sets or None)
    try:
        return function(*args)
    finally:
        job.shutdown()


def outcomes(ranks: int, function: Callable[..., Any], *args: Any, **variables: str) -> list[Any]:
    """Runs function(*args) on ranks that may die: their results, and None for a rank that ended without one."""
    name = f"test/{secrets.token_hex(8)}"
    places = [(rank, ranks, name, function, args, variables) for rank in range(ranks)]
    return Processes(multiprocessing.get_context("fork"), _one, places).outcomes()


def _one(rank: int, ranks: int, name: str, function: Any, args: Any, variables: Any, pipe: Any) -> None:
    result = _main(ringreduce.init(rank, ranks, name, timeout=60), function, args, variables)
    pipe.send_bytes(pickle.dumps(result))
    pipe.close()
    os._exit(0)


def values(count: int, rank: int, dtype: Any = None) -> Any:
    """Small whole numbers, other ones on every rank: every order of adding them gives the same float."""
    import torch

    dtype = dtype or torch.float32
    return ((torch.arange(count) * 7 + rank * 3) % 8).to(dtype)
