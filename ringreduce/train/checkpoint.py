"""Checkpoints: a file per step, which is there as a whole or not at all."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ringreduce.communicator import Communicator
from ringreduce.train.config import ConfigError

__all__ = ["broadcast_file", "load", "newest", "save"]

PARTIAL = ".partial"
NOTHING, CONTENT, PROBLEM = range(3)  # what rank 0 has found


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.pt"


def existing(folder: Path) -> list[Path]:
    """From old to new."""
    return sorted(folder.glob("step-????????.pt"))


def newest(folder: Path) -> Path | None:
    return next(reversed(existing(folder)), None)


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Writes a checkpoint and then removes all but the newest ``keep``. For one rank to call.

    A machine may stop at any moment. So the file is written beside its place, and moved there when it is safe on the
    disk; the name, which is the folder's to keep, is made safe likewise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(f"*{PARTIAL}"):
        abandoned.unlink()
    place = path_of(folder, step)
    partial = place.with_name(place.name + PARTIAL)
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(place)
    _sync_folder(folder)
    for old in existing(folder)[:-keep]:
        old.unlink()
    return place


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


def broadcast_file(comm: Communicator, path: Path | None) -> bytes | None:
    """A file's content, on every rank. Rank 0 alone needs to see the file, and alone looks at ``path``.

    Returns:
        None if rank 0's path is None.

    Raises:
        ConfigError: rank 0 cannot read it; raised on all ranks.
    """
    kind, content = NOTHING, b""
    if comm.rank == 0 and path is not None:
        try:
            kind, content = CONTENT, path.read_bytes()
        except OSError as error:
            kind, content = PROBLEM, f"resume: {path}: {error.strerror}".encode()
    kind, length = comm.broadcast(np.array([kind, len(content)])).tolist()
    buffer = np.frombuffer(content, np.uint8).copy() if comm.rank == 0 else np.empty(length, np.uint8)
    content = comm.broadcast(buffer).tobytes()
    if kind == PROBLEM:
        raise ConfigError(content.decode())
    return content if kind == CONTENT else None
