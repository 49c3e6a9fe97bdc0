"""Places to meet that a name selects: one on this host, or one of network_places."""

from __future__ import annotations

import hashlib
import os
import socket
import struct

from ringreduce.hosts import addresses
from ringreduce.start.rendezvous.places import Connection, Place, TurnedAway, bind

__all__ = ["place_named"]


def place_named(name: str) -> Place:
    kind, separator, address = name.partition("://")
    if not separator or kind not in ("tcp", "munge", "pmi", "pmix"):
        return _HostPlace(name)
    if kind in ("pmi", "pmix"):
        from ringreduce.start.launchers import pmi, pmix
        from ringreduce.start.rendezvous import network_places

        return network_places.PublishedPlace(pmix if kind == "pmix" else pmi, address)
    places = addresses(address)
    if not places:
        raise ValueError(
            f"store must be a name, tcp://host:port, or tcp://host,host,...:port for a rank 0 on any of them, not "
            f"{name!r}"
        )
    from ringreduce.start.rendezvous.network_places import MungePlace, NetworkPlace

    if kind == "munge":
        return MungePlace(places)
    secret = os.environ.get("RINGREDUCE_SECRET", "")
    if not secret:
        raise ValueError(
            f"ranks that meet at {name} need a secret: set RINGREDUCE_SECRET on all ranks to the same text, which "
            "nobody else knows"
        )
    return NetworkPlace(places, secret.encode())


class _HostPlace:
    """A place on one host, for processes of one user."""

    on_network = False
    knows = "user"
    proof_size = 0

    def __init__(self, name: str) -> None:
        digest = hashlib.sha256(f"{os.getuid()}/{name}".encode()).hexdigest()[:32]
        self._address = f"\0ringreduce-{digest}"

    def listener(self, deadline: float) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        bind(listener, self._address, deadline, "another job of the same name is still starting")
        return listener

    def withdraw(self) -> None:
        pass

    def challenge(self, stranger: socket.socket) -> bytes | None:
        return b"" if _same_user(stranger) else None

    def accepts(
        self, stranger: socket.socket, challenge: bytes, greeting: bytes, proof: bytes, wanted: bool
    ) -> bool:
        return True

    def dial(self, timeout: float) -> socket.socket:
        dialled = socket.socket(socket.AF_UNIX)
        try:
            dialled.settimeout(timeout)
            dialled.connect(self._address)
        except BaseException:
            dialled.close()
            raise
        return dialled

    def greet(self, dialled: socket.socket, greeting: bytes) -> None:
        if not _same_user(dialled):
            raise TurnedAway("a process of another user answers for rank 0")
        dialled.sendall(greeting)

    def encrypted(self, greeted: socket.socket, begins: bool) -> Connection:
        return greeted  # between processes of one host

    def is_here(self) -> bool:
        return True


def _same_user(connected: socket.socket) -> bool:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())
