"""Checkpoints: each rank writes a part in the background, and any number of ranks reads them."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.elastic.files import SealError, read_sealed, write_sealed
from ringreduce.elastic.state import State
from ringreduce.elastic.trees import first_difference
from ringreduce.errors import Error

__all__ = ["CheckpointError", "Checkpoints"]

PART = re.compile(r"rank-(\d{5})-of-(\d{5})\.pt")
PLAIN = (int, float, complex, bool, str, bytes, type(None))


class CheckpointError(Error):
    """A checkpoint cannot be written, or is not one of this state."""


class Checkpoints:
    """A folder of checkpoints, which all ranks see.

    A checkpoint is a folder with a file of each rank. A rank copies its share of the state, which takes as long as a
    copy of 1/size of it, and writes the copy while training goes on. Ranks do not wait for each other. A file exists
    completely or not at all, and has a checksum. A checkpoint without all of its files is not used.

    Args:
        folder: the folder, the same on all ranks.
        every: the number of steps between two checkpoints. The last step writes one, too.
        keep: the number of checkpoints to keep.
        resume: whether training begins with the newest whole checkpoint, if there is any.

    Raises:
        ValueError: every or keep is not positive.
    """

    def __init__(self, folder: str | Path, *, every: int = 100, keep: int = 2, resume: bool = True) -> None:
        if every < 1 or keep < 1:
            raise ValueError(f"every and keep must be positive, not {every} and {keep}")
        self.folder, self.every, self.keep, self.resume = Path(folder), every, keep, resume
        self._thread: threading.Thread | None = None
        self._problem: OSError | None = None

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, state: State) -> None:
        """Begins to write a checkpoint. Waits for the one before, if that is still being written.

        Raises:
            CheckpointError: the one before could not be written, or a value of the state is not a number, a string, a
                tensor, or a list, tuple or dict of these.
        """
        self.wait()
        rank, size = state.comm.rank, state.comm.size
        place = self.folder / f"step-{state.step:08d}" / f"rank-{rank:05d}-of-{size:05d}.pt"
        content = _share_of(state, rank, size)
        thread = threading.Thread(target=self._write, args=(place, content), name="ringreduce-checkpoint")
        thread.start()
        self._thread = thread

    def _write(self, place: Path, content: dict[str, Any]) -> None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(place, content)
            self._remove_old()  # the last rank to come here sees that the checkpoint is whole
        except OSError as error:
            self._problem = error

    def _remove_old(self) -> None:
        whole = self.whole()
        for folder in self.folder.glob("step-????????"):
            if len(whole) >= self.keep and folder.name < whole[-self.keep].name:
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
        return sorted(folder for folder in self.folder.glob("step-????????") if _parts(folder))

    def restore(self, state: State, comm: Communicator) -> int:
        """Loads the newest whole checkpoint, written by any number of ranks. Every rank of comm must call it.

        Returns:
            The number of ranks that wrote it. 0 if there was none.

        Raises:
            CheckpointError: it is damaged, or of another state. Every rank raises it.
        """
        found = comm.broadcast_object([str(path) for part in self.whole()[-1:] for path in _parts(part)])
        if not found:
            return 0
        problem = ""
        try:
            self._load(state, [read_sealed(Path(path)) for path in found])
        except (OSError, SealError, CheckpointError) as error:
            problem = str(error)
        problems = [text for text in comm.all_gather_object(problem) if text]
        if problems:
            raise CheckpointError(problems[0])
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


def _parts(folder: Path) -> list[Path]:
    """Returns the files of a checkpoint, or nothing if one is missing."""
    by_size: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("rank-*.pt")):
        if named := PART.fullmatch(path.name):
            by_size.setdefault(int(named[2]), []).append(path)
    return next((paths for size, paths in sorted(by_size.items()) if len(paths) == size), [])


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
