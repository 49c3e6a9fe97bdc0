"""Places where ranks meet rank 0, and how both ends check that the other belongs to the job."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import time
from typing import Protocol

from ringreduce.errors import TimeoutError

__all__ = ["Connection", "Place", "Space", "TurnedAway", "bind", "place_named"]


class Connection(Protocol):
    """The methods of a socket that ranks need after the greeting."""

    def fileno(self) -> int: ...
    def settimeout(self, seconds: float, /) -> None: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, count: int, /) -> bytes: ...
    def close(self) -> None: ...


class Place(Protocol):
    """A place to meet. A greeting is followed by a proof of ``proof_size`` bytes."""

    on_network: bool
    proof_size: int

    def listener(self, deadline: float) -> socket.socket:
        """Returns a socket that is bound to the place. Waits until the place is free."""

    def withdraw(self) -> None:
        """Ends the meeting of ranks there: all have come."""

    def challenge(self, stranger: socket.socket) -> bytes | None:
        """Sends a challenge to a new connection, and returns it. None rejects the connection."""

    def accepts(self, stranger: socket.socket, challenge: bytes, greeting: bytes, proof: bytes) -> bool:
        """Returns whether a greeting comes from a rank of the job. If so, sends it a proof in return."""

    def dial(self, timeout: float) -> socket.socket:
        """Connects to the place."""

    def greet(self, dialled: socket.socket, greeting: bytes) -> None:
        """Greets rank 0. Raises TurnedAway if either side does not accept the other."""

    def encrypted(self, greeted: socket.socket, begins: bool) -> Connection:
        """Returns the connection encrypted with TLS, if the place is on a network."""

    def is_here(self) -> bool:
        """Returns whether others would find a listener of this host at the place."""


class Space(Protocol):
    """A launcher's key-value space, or another store, which only the ranks of a job can reach."""

    def publish(self, key: str, text: str, deadline: float) -> None: ...
    def look_up(self, key: str, deadline: float) -> str: ...


class TurnedAway(ConnectionError):
    """A process at rank 0's address cannot meet with this rank. The text says why."""


def place_named(name: str) -> Place:
    kind, separator, address = name.partition("://")
    if not separator or kind not in ("tcp", "munge", "pmi", "pmix"):
        return _HostPlace(name)
    if kind in ("pmi", "pmix"):
        from ringreduce.start import pmi, pmix
        from ringreduce.start.network_places import PublishedPlace

        return PublishedPlace(pmix if kind == "pmix" else pmi, address)
    hosts, colon, port = address.rpartition(":")
    if not (colon and all(hosts.split(",")) and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(
            f"store must be a name, tcp://host:port, or tcp://host,host,...:port for a rank 0 on any of them, not "
            f"{name!r}"
        )
    places = [f"{host}:{port}" for host in hosts.split(",")]
    from ringreduce.start.network_places import MungePlace, NetworkPlace

    if kind == "munge":
        return MungePlace(places)
    secret = os.environ.get("RINGREDUCE_SECRET", "")
    if not secret:
        raise ValueError(
            f"ranks that meet at {name} need a secret: set RINGREDUCE_SECRET on all ranks to the same text, which "
            "nobody else knows"
        )
    return NetworkPlace(places, secret.encode())


def bind(listener: socket.socket, address: tuple[str, int] | str, deadline: float, taken: str) -> None:
    while True:
        try:
            return listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # The previous job may still be meeting there.
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 timed out: {taken}", 0) from error
            time.sleep(0.01)


class _HostPlace:
    """A place on one host, for processes of one user."""

    on_network = False
    proof_size = 0

    def __init__(self, name: str) -> None:
        digest = hashlib.sha256(f"{os.getuid()}/{name}".encode()).hexdigest()[:32]
        self._address = f"\0ringreduce-{digest}"

    def listener(self, deadline: float) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        try:
            bind(listener, self._address, deadline, "another job of the same name is still starting")
        except BaseException:
            listener.close()
            raise
        return listener

    def withdraw(self) -> None:
        pass

    def challenge(self, stranger: socket.socket) -> bytes | None:
        return b"" if _same_user(stranger) else None

    def accepts(self, stranger: socket.socket, challenge: bytes, greeting: bytes, proof: bytes) -> bool:
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
