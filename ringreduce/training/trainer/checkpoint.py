"""Checkpoints. There is one file per step, which is written completely or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.training.elastic.checkpoint_files import PARTIAL, write_sealed
from ringreduce.training.elastic.checkpoint_files import unsealed as load
from ringreduce.training.elastic.runs import Run, checkpoints_in
from ringreduce.training.trainer.config import Config, ConfigError, ToldError, writing

__all__ = ["existing", "find", "load", "on_rank_0", "save"]

SUFFIX = ".pt"


def existing(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, from old to new."""
    return checkpoints_in(folder, SUFFIX)


def save(folder: Path, run: Run, step: int, state: dict[str, Any], keep: int) -> None:
    """Writes a checkpoint, and then removes all but the newest ``keep`` ones, also those of earlier runs.

    Only one rank calls it. See :func:`ringreduce.elastic.checkpoint_files.write_sealed`.

    Raises:
        ConfigError: The file cannot be written. The earlier checkpoints are kept.
    """
    place = folder / f"{run.name(step)}{SUFFIX}"
    with writing("checkpoints", place):
        for abandoned in folder.glob(f"*{PARTIAL}"):
            abandoned.unlink()
        write_sealed(place, state)
        for old in existing(folder)[:-keep]:
            old.unlink()


def find(config: Config) -> bytes:
    """Returns the content of the checkpoint to resume from, or b"" if there is none. Only one rank calls it.

    Raises:
        ConfigError: The checkpoint cannot be read or is damaged. The message names an intact one, if there is any.
    """
    auto, chosen = config.resume == "auto", Path(config.resume)
    candidates = existing(Path(config.checkpoints))
    if not auto:
        try:
            chosen.open("rb").close()
        except OSError as error:
            raise ConfigError(f"resume: {chosen}: {error.strerror}") from error
        others = existing(chosen.parent)
        candidates = [*(others[: others.index(chosen)] if chosen in others else others), chosen]
    damaged: list[str] = []
    for path in reversed(candidates):
        if content := _whole(path):
            if damaged and not auto:
                raise ConfigError(
                    f"resume: {chosen} is damaged or not a checkpoint; resume from {path} instead"
                )
            if damaged:
                print(f"resume: skipping damaged {' and '.join(damaged)}; resuming from {path}", flush=True)
            return content
        damaged.append(str(path))
    if damaged:
        raise ConfigError(
            f"resume: {damaged[0]} is damaged or not a checkpoint, and there is no intact older one"
        )
    return b""


def _whole(path: Path) -> bytes:
    """Returns the content of a file if it is an intact checkpoint, otherwise b""."""
    with contextlib.suppress(Exception):  # arbitrary bytes may raise any exception
        content = path.read_bytes()
        if load(content).keys() >= {"config", "step", "model", "optimizer", "schedule"}:
            return content
    return b""


def on_rank_0(comm: Communicator, function: Callable[[], bytes | None]) -> bytes:
    """Calls ``function`` on rank 0 and returns its result on every rank.

    Raises:
        ConfigError: ``function`` raised it. It is raised on all ranks.
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
