"""Ray's key-value store as a store for :func:`ringreduce.init`, in which the actors of a group find rank 0."""

from __future__ import annotations

import builtins
import time
from datetime import timedelta

from ray.experimental import internal_kv

__all__ = ["RayStore"]

_NAMESPACE = b"ringreduce"
_PAUSE = 0.005  # seconds between two looks, at first
_LONGEST_PAUSE = 0.1


class RayStore:
    """The keys of one group.

    Args:
        name: the group's name. Only one group of a name can meet at a time.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _key(self, key: str) -> str:
        return f"{self._name}/{key}"

    def set(self, key: str, value: bytes) -> None:
        internal_kv._internal_kv_put(self._key(key), value, overwrite=True, namespace=_NAMESPACE)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = internal_kv._internal_kv_get(self._key(key), namespace=_NAMESPACE)
        return found

    def delete_key(self, key: str) -> None:
        internal_kv._internal_kv_del(self._key(key), namespace=_NAMESPACE)

    def wait(self, keys: list[str], limit: timedelta) -> None:
        until, pause = time.monotonic() + limit.total_seconds(), _PAUSE
        while any(self.get(key) is None for key in keys):
            if time.monotonic() > until:
                raise builtins.TimeoutError
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
