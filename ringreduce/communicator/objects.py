"""Sends pickled Python objects between ranks.

Ranks exchange the lengths first, with a flag that says whether the object could be pickled. A rank whose object could
not sends the reason instead, and all ranks raise the same error.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ringreduce._engine import values

if TYPE_CHECKING:
    from ringreduce.communicator import Communicator

__all__ = ["all_gather", "broadcast", "gather", "scatter"]

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def all_gather(comm: Communicator, obj: Any, timeout: float | None) -> list[Any]:
    """Returns all ranks' objects."""
    own, counts = _measured(comm, obj, timeout)
    return _parted(comm.all_gather(own, counts=counts, timeout=timeout), counts)


def gather(comm: Communicator, obj: Any, root: int, timeout: float | None) -> list[Any] | None:
    """Returns all ranks' objects on the root, and None elsewhere."""
    _check(comm, root)
    own, counts = _measured(comm, obj, timeout)
    joined = comm.gather(own, root, counts=counts, timeout=timeout)
    return None if joined is None else _parted(joined, counts)


def _measured(comm: Communicator, obj: Any, timeout: float | None) -> tuple[Bytes, list[int]]:
    """Returns this rank's pickle, and the lengths of all ranks' pickles."""
    (own,), problem = _prepared(lambda: [_pickled(obj, f"obj on rank {comm.rank}")])
    told = comm.all_gather(np.array([[own.size, problem is not None]]), timeout=timeout)
    counts, failed = told[:, 0].tolist(), told[:, 1].tolist()
    if any(failed):
        rank = failed.index(1)
        _refuse(comm, own if comm.rank == rank else np.empty(counts[rank], np.uint8), rank, problem, timeout)
    return own, counts


def _parted(joined: Bytes, counts: list[int]) -> list[Any]:
    return [_unpickled(part, rank) for rank, part in enumerate(np.split(joined, np.cumsum(counts)[:-1]))]


def broadcast(comm: Communicator, obj: Any, root: int, timeout: float | None) -> Any:
    """Returns the root's object."""
    _check(comm, root)
    parts, counts = _announced(comm, 1, lambda: [_pickled(obj, f"obj on rank {root}")], root, timeout)
    blob = comm.broadcast(parts[0] if parts else np.empty(counts[0], np.uint8), root, timeout=timeout)
    return obj if comm.rank == root else _unpickled(blob, root)


def scatter(comm: Communicator, objs: Any, root: int, timeout: float | None) -> Any:
    """Returns the object that the root has for this rank."""
    _check(comm, root)
    given = objs if comm.rank == root and isinstance(objs, Sequence) else ()

    def pickled() -> list[Bytes]:
        if len(given) != comm.size:
            raise ValueError(
                f"objs on rank {root} must be a list of one object for each of the {comm.size} ranks, not "
                + (f"of {len(given)}" if isinstance(objs, Sequence) else type(objs).__name__)
            )
        return [_pickled(obj, f"objs[{place}] on rank {root}") for place, obj in enumerate(given)]

    parts, counts = _announced(comm, comm.size, pickled, root, timeout)
    own = np.empty(counts[comm.rank], np.uint8)
    comm.scatter(np.concatenate(parts) if parts else None, root, out=own, counts=counts, timeout=timeout)
    return given[root] if comm.rank == root else _unpickled(own, root)


def _check(comm: Communicator, root: int) -> None:
    values.whole(root, "root", 0, comm.size - 1, "a rank")


def _pickled(obj: Any, name: str) -> Bytes:
    file = io.BytesIO()
    try:
        pickle.dump(obj, file)
    except Exception as error:  # any exception: objects run their own code
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{name} cannot be pickled: {reason}") from error
    return np.frombuffer(file.getbuffer(), np.uint8)


def _unpickled(blob: Bytes, rank: int) -> Any:
    try:
        return pickle.loads(blob.data)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"the object from rank {rank} cannot be unpickled on this rank: {reason}") from error


def _prepared(pickled: Callable[[], list[Bytes]]) -> tuple[list[Bytes], ValueError | None]:
    """Returns the bytes to send: the pickles, or the text of the error."""
    try:
        return pickled(), None
    except ValueError as error:
        return [np.frombuffer(bytearray(str(error).encode(errors="replace")), np.uint8)], error


def _announced(
    comm: Communicator, parts: int, pickled: Callable[[], list[Bytes]], root: int, timeout: float | None
) -> tuple[list[Bytes], list[int]]:
    """Returns the root's parts (empty on other ranks) and their lengths, which all ranks learn."""
    own, problem = _prepared(pickled) if comm.rank == root else ([], None)
    told = np.zeros(1 + parts, np.int64)
    told[: 1 + len(own)] = [problem is not None, *(part.size for part in own)]
    failed, *counts = comm.broadcast(told, root, timeout=timeout).tolist()
    if failed:
        _refuse(comm, own[0] if own else np.empty(counts[0], np.uint8), root, problem, timeout)
    return own, counts


def _refuse(
    comm: Communicator, text: Bytes, rank: int, problem: Exception | None, timeout: float | None
) -> NoReturn:
    """Raises on every rank the error of one rank, which sends its text."""
    comm.broadcast(text, rank, timeout=timeout)
    raise problem if comm.rank == rank and problem else ValueError(text.tobytes().decode())
