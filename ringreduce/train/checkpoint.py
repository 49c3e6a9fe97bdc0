"""Checkpoints: a file per step, which is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.train.config import Config, ConfigError, ToldError, writing

__all__ = ["existing", "find", "load", "on_rank_0", "save"]

PARTIAL = ".partial"
DIGEST_BYTES = hashlib.sha256().digest_size
COMMENT_LENGTH_BYTES = 2  # the last field of a ZIP file is the length of the comment that follows
ZIP_END = b"PK\5\6"  # the signature of a ZIP file's last record
ZIP_END_BYTES = 22  # of this record without a comment


def existing(folder: Path) -> list[Path]:
    """From old to new."""
    return sorted(folder.glob("step-????????.pt"))


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> None:
    """Writes a checkpoint and then removes all but ``keep``: this one and the newest others. For one rank to call.

    A machine may stop at any moment. So the file is written beside its place, and moved there when it is safe on the
    disk. The name is an entry of the folder, which is made safe likewise.

    Raises:
        ConfigError: the file cannot be written; the checkpoints before it are kept.
    """
    place = folder / f"step-{step:08d}.pt"
    partial = place.with_name(place.name + PARTIAL)
    try:
        with writing("checkpoints", place):
            folder.mkdir(parents=True, exist_ok=True)
            for abandoned in folder.glob(f"*{PARTIAL}"):
                abandoned.unlink()
            with partial.open("wb") as file:
                file.write(_sealed(state))
                file.flush()
                os.fsync(file.fileno())
            partial.rename(place)
            _sync_folder(folder)
            others = [path for path in existing(folder) if path != place]
            for old in others[: max(len(others) - keep + 1, 0)]:
                old.unlink()
    except ConfigError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sealed(state: dict[str, Any]) -> memoryview:
    """The ZIP file that torch.save writes, with the SHA-256 of all bytes before as its comment. torch.load reads it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(-COMMENT_LENGTH_BYTES, io.SEEK_END)
    file.write(DIGEST_BYTES.to_bytes(COMMENT_LENGTH_BYTES, "little"))
    file.write(hashlib.sha256(file.getbuffer()).digest())
    return file.getbuffer()


def load(content: bytes) -> dict[str, Any]:
    """What was saved. Nothing in the file is run: it holds tensors, numbers, texts and containers of these.

    Raises:
        Exception: the content is damaged; torch raises several kinds.
    """
    older = content[-ZIP_END_BYTES:].startswith(ZIP_END)  # without a comment, and so without a checksum
    if not older and not content.endswith(hashlib.sha256(memoryview(content)[:-DIGEST_BYTES]).digest()):
        raise ValueError("the checksum differs")
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return state


def find(config: Config) -> bytes:
    """The content of the checkpoint to resume from; b"" if there is none. For one rank to call.

    Raises:
        ConfigError: it cannot be read or is damaged. The text names a checkpoint that can be used instead.
    """
    auto, chosen = config.resume == "auto", Path(config.resume)
    candidates = existing(Path(config.checkpoints))
    if not auto:
        try:
            chosen.open("rb").close()
        except OSError as error:
            raise ConfigError(f"resume: {chosen}: {error.strerror}") from error
        candidates = [path for path in existing(chosen.parent) if path.name < chosen.name] + [chosen]
    damaged: list[str] = []
    for path in reversed(candidates):
        if content := _whole(path):
            if damaged and not auto:
                raise ConfigError(f"resume: {chosen} is damaged or no checkpoint; resume from {path} instead")
            if damaged:
                print(f"resume: {' and '.join(damaged)} skipped as damaged; going on from {path}", flush=True)
            return content
        damaged.append(str(path))
    if damaged:
        raise ConfigError(f"resume: {damaged[0]} is damaged or no checkpoint, and no whole one is before it")
    return b""


def _whole(path: Path) -> bytes:
    """The file's content if it is a checkpoint without damage, else b""."""
    with contextlib.suppress(Exception):  # of any kind: the bytes may be anything
        content = path.read_bytes()
        if load(content).keys() >= {"config", "step", "model", "optimizer", "schedule"}:
            return content
    return b""


def on_rank_0(comm: Communicator, function: Callable[[], bytes | None]) -> bytes:
    """Calls ``function`` on rank 0 and returns its result on every rank.

    Raises:
        ConfigError: ``function`` has raised it; raised on all ranks.
    """
    content, problem = b"", ""
    if comm.rank == 0:
        try:
            content = function() or b""
        except ConfigError as error:
            problem = str(error)
    told: tuple[bytes, str] = comm.broadcast_object((content, problem))
    content, problem = told
    if problem:
        raise (ToldError if comm.rank else ConfigError)(problem)
    return content
