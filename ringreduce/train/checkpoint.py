"""Checkpoints: a file per step, which is there as a whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ringreduce.blobs import gather_bytes
from ringreduce.communicator import Communicator
from ringreduce.train.config import Config, ConfigError

__all__ = ["existing", "find", "load", "on_rank_0", "save"]

PARTIAL = ".partial"


def existing(folder: Path) -> list[Path]:
    """From old to new."""
    return sorted(folder.glob("step-????????.pt"))


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> None:
    """Writes a checkpoint and then removes all but the newest ``keep``. For one rank to call.

    A machine may stop at any moment. So the file is written beside its place, and moved there when it is safe on the
    disk. The name is an entry of the folder, which is made safe likewise.
    """
    place = folder / f"step-{step:08d}.pt"
    partial = place.with_name(place.name + PARTIAL)
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(f"*{PARTIAL}"):
        abandoned.unlink()
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(place)
    _sync_folder(folder)
    for old in existing(folder)[:-keep]:
        old.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(content: bytes) -> dict[str, Any]:
    """What was saved. Nothing in the file is run: it holds tensors, numbers, texts and containers of these."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return state


def find(config: Config) -> bytes:
    """The content of the checkpoint to resume from; b"" if there is none. For one rank to call.

    Raises:
        ConfigError: it cannot be read.
    """
    path = Path(config.resume)
    if config.resume == "auto":
        paths = existing(Path(config.checkpoints))
        if not paths:
            return b""
        path = paths[-1]
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"resume: {path}: {error.strerror}") from error


def on_rank_0(comm: Communicator, function: Callable[[], bytes | None]) -> bytes:
    """Calls ``function`` on rank 0 and returns its result on every rank.

    Raises:
        ConfigError: ``function`` has raised it; raised on all ranks.
    """
    content, problem = b"", b""
    if comm.rank == 0:
        try:
            content = function() or b""
        except ConfigError as error:
            problem = str(error).encode()
    content, problem = (gather_bytes(comm, own)[0] for own in (content, problem))
    if problem:
        raise ConfigError(problem.decode())
    return content
