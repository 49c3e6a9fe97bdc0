"""Where the actors of a group meet: Ray's key-value store.

Rank 0 opens a meeting and publishes its key. Every other rank writes its blob there and waits for all of them. A
meeting that a dead rank 0 has left behind does no harm: nobody answers in it, and the other ranks move to the new one.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable

from ray.experimental import internal_kv

from ringreduce.errors import TimeoutError

__all__ = ["Meeting"]

_NAMESPACE = b"ringreduce"
_PAUSE = 0.005  # seconds between two looks, at first
_LONGEST_PAUSE = 0.1


class Meeting:
    """An exchange for :func:`ringreduce.init`: ``meeting(blob)`` returns all ranks' blobs.

    Args:
        name: the group's name. Only one group of a name can meet at a time.
        timeout: seconds for the whole meeting.
    """

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None:
        self._name, self._rank, self._size = name, rank, size
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._round = 0
        self._nonce = uuid.uuid4().bytes  # tells this process's blobs from those that a dead one has left
        self._key = ""
        if rank == 0:
            self._key = f"{name}/{uuid.uuid4().hex}"
            _put(name, self._key.encode())

    def __call__(self, blob: bytes) -> list[bytes]:
        self._round += 1
        mine = self._nonce + blob
        marked = self._lead(mine) if self._rank == 0 else self._follow(mine)
        return [one[len(self._nonce) :] for one in marked]

    def close(self) -> None:
        """Removes what rank 0 has published. Call it when all ranks have left the meeting."""
        if self._rank == 0:
            if _get(self._name) == self._key.encode():
                internal_kv._internal_kv_del(self._name, namespace=_NAMESPACE)
            internal_kv._internal_kv_del(self._key, del_by_prefix=True, namespace=_NAMESPACE)

    def _lead(self, blob: bytes) -> list[bytes]:
        blobs = [blob]
        for rank in range(1, self._size):
            blobs.append(self._wait(rank, lambda rank=rank: _get(self._place(rank))))  # type: ignore[misc]
        _put(self._place("all"), pickle.dumps(blobs))
        return blobs

    def _follow(self, blob: bytes) -> list[bytes]:
        if self._round > 1:
            _put(self._place(self._rank), blob)
        blobs: list[bytes] = pickle.loads(self._wait(0, lambda: self._answer(blob)))
        return blobs

    def _answer(self, blob: bytes) -> bytes | None:
        """Returns rank 0's answer, if it is there and an answer to this blob. Moves to a newer meeting in round 1."""
        if self._round == 1:
            now = (_get(self._name) or b"").decode()
            if now and now != self._key:
                self._key = now
                _put(self._place(self._rank), blob)
        answer = _get(self._place("all")) if self._key else None
        return answer if answer and pickle.loads(answer)[self._rank] == blob else None

    def _place(self, what: int | str) -> str:
        return f"{self._key}/{self._round}/{what}"

    def _wait(self, rank: int, look: Callable[[], bytes | None]) -> bytes:
        pause = _PAUSE
        while (found := look()) is None:
            if time.monotonic() > self._deadline:
                raise TimeoutError(
                    f"rank {self._rank} of the group {self._name!r} timed out after {self._timeout:g} s waiting for "
                    f"rank {rank} to join it",
                    rank,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return found


def _get(key: str) -> bytes | None:
    found: bytes | None = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
    return found


def _put(key: str, value: bytes) -> None:
    internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)
