"""How a process was started, and where others of its job can find its group."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringreduce import __version__, _engine
from ringreduce._engine import values
from ringreduce.start.launchers import Launched, door_of, place_to_meet

if TYPE_CHECKING:
    from ringreduce.start.growing.door import Terms
    from ringreduce.start.growing.growth import GroupGrowth
    from ringreduce.start.rendezvous.places import Place

__all__ = ["Origin", "fingerprint_of", "place_of"]


def fingerprint_of(given: str | bytes | None) -> str:
    """Returns the digest of a fingerprint, or "" for none."""
    if given is None:
        return ""
    if not isinstance(given, str | bytes):
        raise TypeError(f"fingerprint must be a string, bytes or None, not {type(given).__name__}")
    return hashlib.sha256(given.encode() if isinstance(given, str) else given).hexdigest()


def named(store: str) -> str:
    """Returns a store that is a name. Raises ValueError if it cannot be one."""
    if not values.text(store, "store"):
        raise ValueError("store must not be empty")
    return store


def place_of(store: Any) -> Place | None:
    """Returns the place that a store stands for; None for what is an exchange by itself."""
    from ringreduce.start.rendezvous.named_places import place_named
    from ringreduce.start.rendezvous.network_places import PublishedPlace, StoreSpace

    if isinstance(store, str):
        return place_named(named(store))
    if hasattr(store, "set") and hasattr(store, "get"):
        # Rank 0 may have been another process before, whose place is still in the store.
        return PublishedPlace(StoreSpace(store), "meeting", changes=True)
    return None


@dataclass(frozen=True)
class Origin:
    """How a process was started and asked for its group. New groups are made in the same way."""

    store: Any
    known: Launched | None
    transport: str = ""
    encrypt: bool | None = None
    reproducible: bool | None = None
    max_blocks: int | None = None
    priority: int | None = None

    def terms(self, fingerprint: str) -> Terms:
        from ringreduce.start.growing.door import Terms

        by_environment = os.environ.get("RINGREDUCE_REPRODUCIBLE") == "1"
        return Terms(
            version=__version__,
            transport=self.transport or os.environ.get("RINGREDUCE_TRANSPORT", "") or "auto",
            reproducible=by_environment if self.reproducible is None else self.reproducible,
            encrypt=self.encrypts(),
            checksums=os.environ.get("RINGREDUCE_TCP_CHECK") == "1",
            fingerprint=fingerprint,
        )

    @property
    def alone(self) -> bool:
        """Whether no launcher has started this process, so that it has no job in which others could find it."""
        return self.store is None and self.known is None

    def growth(self) -> GroupGrowth:
        """Returns the growth of a group that was started in this way."""
        from ringreduce.start.growing.growth import (
            GroupGrowth,  # imports sockets and threads, which only this needs
        )

        return GroupGrowth(self)

    def encrypts(self) -> bool:
        return os.environ.get("RINGREDUCE_TLS") == "1" if self.encrypt is None else self.encrypt

    def door(self, timeout: float) -> Callable[[], Place]:
        """Returns a function that finds the place where newcomers ask for the group.

        Raises:
            ValueError: there is none.
        """
        from ringreduce.start.rendezvous.named_places import place_named
        from ringreduce.start.rendezvous.network_places import PublishedPlace, StoreSpace

        store = self.store
        if "mpi" in self.terms("").transport:
            raise ValueError(
                "a group over the mpi transport cannot grow: MPI gives its ranks no way to reach a newcomer"
            )
        if self.alone:
            raise ValueError(
                "no launcher has started this process, so join() cannot find a group: give it a store"
            )
        if store is None:
            assert self.known is not None
            store = door_of(self.known, os.environ, timeout)
        if isinstance(store, str):
            name = store if named(store).startswith(("tcp://", "munge://")) else f"{store}/door"
            place_named(name)  # raises for an invalid one
            return lambda: place_named(name)
        if hasattr(store, "set") and hasattr(store, "get"):
            return lambda: PublishedPlace(StoreSpace(store), "door")
        raise ValueError(
            f"newcomers cannot find a group that met through a {type(store).__name__}: give init() a name, "
            "tcp://host:port, or a store with set and get"
        )

    def meeting(self, timeout: float) -> Place | None:
        """Returns where the ranks of this job meet in init(). None: one that is started again cannot."""
        store = self.store
        if store is None and self.known is not None:
            store = place_to_meet(self.known, os.environ, timeout)
        return place_of(store)

    def connect(
        self,
        rank: int,
        size: int,
        exchange: Callable[[bytes], list[bytes]],
        timeout: float,
        job: _engine.MpiJob | None = None,
    ) -> _engine.Communicator:
        return _engine.connect(
            rank, size, exchange, timeout, self.reproducible, self.transport, job, self.encrypt,
            self.max_blocks, self.priority,
        )  # fmt: skip
