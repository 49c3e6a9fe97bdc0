"""Checkpoints: each rank writes a part in the background, and any number of ranks reads them."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.training.elastic.checkpoint_files import SealError, read_sealed, write_sealed
from ringreduce.training.elastic.runs import Run, checkpoints_in
from ringreduce.training.elastic.state import State
from ringreduce.training.elastic.trees import first_difference

__all__ = ["CheckpointError", "Checkpoints"]

PART = re.compile(r"rank-\d{5,}-of-\d{5,}\.pt")
PLAIN = (int, float, complex, bool, str, bytes, type(None))


class CheckpointError(Error):
    """A checkpoint cannot be written, or is not one of this state."""


class Checkpoints:
    """A folder of checkpoints, which all ranks see.

    A checkpoint is a folder with a file of each rank. A rank copies its share of the state, which takes as long as a
    copy of 1/size of it, and writes the copy while training continues. Ranks do not wait for each other. A file exists
    completely or not at all, and has a checksum. A checkpoint without all of its files is not used.

    Each start of a training, and each change of its ranks, begins a run, whose name the ranks agree on. A checkpoint
    has the name of its run, and so has each file in it. The newest checkpoint is the last one of the latest run,
    whatever its step.

    Args:
        folder: the folder, the same on all ranks.
        every: the number of steps between two checkpoints. The last step writes one, too.
        keep: the number of checkpoints to keep, also of those of earlier runs.
        resume: whether training begins with the newest whole checkpoint, if there is any. False: training starts afresh
            and never returns to older checkpoints, which stay until ``keep`` newer ones are whole.

    Raises:
        ValueError: every or keep is not positive.
    """

    def __init__(self, folder: str | Path, *, every: int = 100, keep: int = 2, resume: bool = True) -> None:
        if every < 1 or keep < 1:
            raise ValueError(f"every and keep must be positive, not {every} and {keep}")
        self.folder, self.every, self.keep, self.resume = Path(folder), every, keep, resume
        self.since = -1  # the first run whose checkpoints may be read; -1 before a run has begun
        self._run: Run | None = None
        self._thread: threading.Thread | None = None
        self._problem: OSError | None = None

    def begin(self, comm: Communicator, since: int = -1) -> None:
        """Begins a run. Every rank of comm calls it.

        Args:
            since: what ``since`` is on the ranks that have begun one before, or -1.
        """
        run: Run = comm.broadcast_object(Run.begin(self.folder) if comm.rank == 0 else None)
        self._run = run
        self.since = since if since >= 0 else 0 if self.resume else run.number

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, state: State) -> None:
        """Begins to write a checkpoint. Waits for the one before, if that is still being written.

        Raises:
            CheckpointError: the one before could not be written, or a value of the state is not a number, a string, a
                tensor, or a list, tuple or dict of these.
        """
        self.wait()
        if self._run is None:
            self.begin(state.comm)
        assert self._run is not None
        rank, size = state.comm.rank, state.comm.size
        place = self.folder / self._run.name(state.step) / _part_name(rank, size)
        content = {"place": _place_in(place), **_share_of(state, rank, size)}
        thread = threading.Thread(target=self._write, args=(place, content), name="ringreduce-checkpoint")
        thread.start()
        self._thread = thread

    def _write(self, place: Path, content: dict[str, Any]) -> None:
        try:
            write_sealed(place, content)
            self._remove_old()  # the last rank to come here sees that the checkpoint is whole
        except OSError as error:
            self._problem = error

    def _remove_old(self) -> None:
        everything = checkpoints_in(self.folder)
        whole = [place for place, folder in enumerate(everything) if _parts(folder)]
        if len(whole) >= self.keep:
            for folder in everything[: whole[-self.keep]]:
                shutil.rmtree(folder, ignore_errors=True)

    def wait(self) -> None:
        """Waits until this rank's part of the last checkpoint is written.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise CheckpointError(
                f"checkpoints: {problem.filename or self.folder}: {problem.strerror}"
            ) from problem

    # --- reading -------------------------------------------------------------------------------------------

    def whole(self) -> list[Path]:
        """Returns the checkpoints with all of their files, from old to new."""
        return [folder for folder in checkpoints_in(self.folder) if _parts(folder)]

    def restore(self, state: State, comm: Communicator) -> int:
        """Loads the newest whole checkpoint, written by any number of ranks. Every rank of comm must call it.

        Returns:
            The number of ranks that wrote it. 0 if there was none.

        Raises:
            CheckpointError: it is damaged, or of another state. Every rank raises it.
        """
        _on_all(comm, self.wait)  # the last to write removes old ones
        own = [folder for folder in checkpoints_in(self.folder, since=self.since) if _parts(folder)]
        found: list[Path] = comm.broadcast_object(_parts(own[-1]) if own else [])
        if found:
            _on_all(comm, lambda: self._load(state, [_read(path) for path in found]))
            for entry in state.entries:
                entry.restored()
        return len(found)

    def _load(self, state: State, parts: Sequence[dict[str, Any]]) -> None:
        if parts[0]["description"] != state.description():
            theirs, own = first_difference(parts[0]["description"], state.description())
            raise CheckpointError(
                f"{self.folder}: the checkpoint is of another state. The first difference: it has {theirs}; this state "
                f"has {own}"
            )
        tensors = {number: tensor for part in parts for number, tensor in part["tensors"].items()}
        tree = _filled(parts[0]["tree"], tensors, iter(range(len(tensors))))
        for entry in state.entries:
            entry.restore(tree[entry.name], [part["shards"][entry.name] for part in parts])
        state.step = parts[0]["step"]


def _on_all(comm: Communicator, function: Callable[[], None]) -> None:
    """Calls a function. If it fails on a rank, every rank raises CheckpointError."""
    problem = ""
    try:
        function()
    except (OSError, SealError, CheckpointError) as error:
        problem = str(error)
    problems = [text for text in comm.all_gather_object(problem) if text]
    if problems:
        raise CheckpointError(problems[0])


def _parts(folder: Path) -> list[Path]:
    """Returns the files of a checkpoint, or nothing if one is missing."""
    try:
        found = sorted(name for name in os.listdir(folder) if PART.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):  # another rank has just removed it
        return []
    complete = [_part_name(rank, len(found)) for rank in range(len(found))]
    return [folder / name for name in found] if found == complete else []


def _part_name(rank: int, size: int) -> str:
    return f"rank-{rank:05d}-of-{size:05d}.pt"


def _place_in(path: Path) -> str:
    """Returns the place that a file names as its own: run, step, rank and number of ranks."""
    return f"{path.parent.name}/{path.name}"


def _read(path: Path) -> dict[str, Any]:
    part: dict[str, Any] = read_sealed(path)
    written = part.get("place") if isinstance(part, dict) else None
    if written != _place_in(path):
        where = f"was written as {written}" if written else "is not part of a checkpoint"
        raise CheckpointError(
            f"{path} {where}. All files of a checkpoint must be where the ranks of one run wrote them"
        )
    return part


def _share_of(state: State, rank: int, size: int) -> dict[str, Any]:
    """Returns a copy of this rank's share: tensors of about the same bytes on each rank, and its own shards."""
    tensors: list[Any] = []
    trees = {}
    for entry in state.entries:
        try:
            trees[entry.name] = _hollow(entry.tree(), tensors)
        except TypeError as error:
            raise CheckpointError(f"{entry.name}: {error}") from None
    order = sorted(range(len(tensors)), key=lambda number: -tensors[number].nbytes)
    loads, own = [0] * size, []
    for number in order:
        owner = loads.index(min(loads))
        loads[owner] += tensors[number].nbytes
        own += [number] if owner == rank else []
    return {
        "step": state.step,
        "description": state.description(),
        "tree": trees,
        "tensors": {number: tensors[number].detach().cpu().clone() for number in own},
        "shards": {entry.name: entry.shard() for entry in state.entries},
    }


def _hollow(tree: Any, tensors: list[Any]) -> Any:
    """Returns a tree with tensors without memory, and adds the tensors to a list."""
    if torch.is_tensor(tree):
        tensors.append(tree)
        return torch.empty(tree.shape, dtype=tree.dtype, device="meta")
    if isinstance(tree, dict):
        return {key: _hollow(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_hollow(value, tensors) for value in tree)
    if not isinstance(tree, PLAIN):
        raise TypeError(
            f"a {type(tree).__name__} cannot be in a checkpoint, only numbers, strings and tensors can"
        )
    return tree


def _filled(tree: Any, tensors: dict[int, Any], numbers: Any) -> Any:
    """Reverses :func:`_hollow`."""
    if torch.is_tensor(tree):
        return tensors[next(numbers)]
    if isinstance(tree, dict):
        return {key: _filled(value, tensors, numbers) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_filled(value, tensors, numbers) for value in tree)
    return tree
