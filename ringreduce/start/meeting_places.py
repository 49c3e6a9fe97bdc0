"""Places where ranks meet rank 0, and how both ends check that the other belongs to the job."""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from typing import Protocol

from ringreduce import _engine
from ringreduce.errors import TimeoutError
from ringreduce.start import munge

__all__ = [
    "Connection",
    "Place",
    "TurnedAway",
    "first_that_answers",
    "place_named",
    "place_published",
    "watch",
]

_NONCE = 16
_PROOF = 32
_ANSWERS = 1.0  # seconds to wait for an address before the next one is tried


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

        return _PublishedPlace(pmix if kind == "pmix" else pmi, address)
    hosts, colon, port = address.rpartition(":")
    if not (colon and all(hosts.split(",")) and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(
            f"store must be a name, tcp://host:port, or tcp://host,host,...:port for a rank 0 on any of them, not "
            f"{name!r}"
        )
    places = [f"{host}:{port}" for host in hosts.split(",")]
    if kind == "munge":
        return _MungePlace(places)
    secret = os.environ.get("RINGREDUCE_SECRET", "")
    if not secret:
        raise ValueError(
            f"ranks that meet at {name} need a secret: set RINGREDUCE_SECRET on all ranks to the same text, which "
            "nobody else knows"
        )
    return _NetworkPlace(places, secret.encode())


def place_published(space: Space, key: str) -> Place:
    """Returns a place whose address rank 0 publishes in a space."""
    return _PublishedPlace(space, key)


def _bind(listener: socket.socket, address: tuple[str, int] | str, deadline: float, taken: str) -> None:
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
            _bind(listener, self._address, deadline, "another job of the same name is still starting")
        except BaseException:
            listener.close()
            raise
        return listener

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


class _NetworkPlace:
    """A port of rank 0's host, which may be one of several.

    Rank 0 sends a random number. The guest greets it with another random number and the HMAC-SHA256 (RFC 2104) of both
    under the secret, and rank 0 answers with its own HMAC.
    """

    on_network = True
    proof_size = _NONCE + _PROOF

    knows = "RINGREDUCE_SECRET"

    def __init__(self, places: list[str], secret: bytes) -> None:
        self._places, self._secret = places, secret
        self._port = int(places[0].rpartition(":")[2]) if places else 0
        self._invitation = b""  # the bytes that rank 0 sends first

    def listener(self, deadline: float) -> socket.socket:
        # On every interface: the name may resolve to an address that this host does not have.
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            taken = "is in use by another program, or by another job that is still starting"
            _bind(listener, ("", self._port), deadline, f"port {self._port} of its host {taken}")
        except BaseException:
            listener.close()
            raise
        return listener

    def _proof(self, side: bytes, challenge: bytes, nonce: bytes, greeting: bytes) -> bytes:
        return hmac.digest(self._secret, side + challenge + nonce + greeting, "sha256")

    def challenge(self, stranger: socket.socket) -> bytes | None:
        nonce = secrets.token_bytes(_NONCE)
        stranger.send(self._invitation + nonce)  # never blocks: the connection is empty
        return nonce

    def accepts(self, stranger: socket.socket, challenge: bytes, greeting: bytes, proof: bytes) -> bool:
        nonce, claimed = proof[:_NONCE], proof[_NONCE:]
        if not hmac.compare_digest(claimed, self._proof(b"guest", challenge, nonce, greeting)):
            return False
        stranger.send(self._proof(b"host", challenge, nonce, greeting))
        return True

    def dial(self, timeout: float) -> socket.socket:
        dialled, place = first_that_answers(self._places, timeout)
        # If another program answers there, the next attempt takes another place.
        self._places = [other for other in self._places if other != place] + [place]
        return dialled

    def is_here(self) -> bool:
        return any(_is_address_of_this_host(place.rpartition(":")[0].strip("[]")) for place in self._places)

    def greet(self, dialled: socket.socket, greeting: bytes) -> None:
        nonce = secrets.token_bytes(_NONCE)
        there = f"the process that answers for rank 0 at {self._places[-1]}"
        try:
            self._be_invited(dialled, there)
            challenge = _exactly(dialled, _NONCE)
            dialled.sendall(greeting + nonce + self._proof(b"guest", challenge, nonce, greeting))
            answer = _exactly(dialled, _PROOF)
        except builtins.TimeoutError as error:
            raise TurnedAway(f"{there} sends nothing: it is not ringreduce") from error
        except ConnectionError as error:
            raise TurnedAway(
                f"{there} closes the connection: its {self.knows} differs from this rank's, or it is not ringreduce"
            ) from error
        if not hmac.compare_digest(answer, self._proof(b"host", challenge, nonce, greeting)):
            raise TurnedAway(f"{there} does not know this rank's {self.knows}")

    def _be_invited(self, dialled: socket.socket, there: str) -> None:
        """Reads the invitation."""

    def encrypted(self, greeted: socket.socket, begins: bool) -> Connection:
        from ringreduce.start.encrypted import Encrypted

        return Encrypted(greeted, begins, self._secret)


class _MungePlace(_NetworkPlace):
    """A port of rank 0's host, without a secret from the user.

    Rank 0 makes a secret and sends it first, as a credential that only this user's processes on this cluster can
    decode.
    """

    _LENGTH = struct.Struct("!H")
    knows = "MUNGE credential"

    def __init__(self, places: list[str]) -> None:
        super().__init__(places, b"")

    def listener(self, deadline: float) -> socket.socket:
        self._secret = secrets.token_bytes(_PROOF)
        credential = munge.encode(self._secret)
        self._invitation = self._LENGTH.pack(len(credential)) + credential
        return super().listener(deadline)

    def _be_invited(self, dialled: socket.socket, there: str) -> None:
        (length,) = self._LENGTH.unpack(_exactly(dialled, self._LENGTH.size))
        try:
            self._secret = munge.decode(_exactly(dialled, length))
        except munge.MungeError as error:
            raise TurnedAway(f"{there} does not belong to this user on this cluster: {error}") from error


class _PublishedPlace(_NetworkPlace):
    """A free port of rank 0's host. Rank 0 publishes it, with a secret that it makes."""

    knows = "secret"

    def __init__(self, space: Space, key: str) -> None:
        super().__init__([], b"")
        self._space, self._key = space, f"ringreduce-{key}"

    def _take(self, secret: str) -> None:
        self._secret = (secret + os.environ.get("RINGREDUCE_SECRET", "")).encode()

    def listener(self, deadline: float) -> socket.socket:
        listener = super().listener(deadline)
        secret = secrets.token_hex(_PROOF)
        self._take(secret)
        try:
            places = _engine.places_here(listener.getsockname()[1])
            self._space.publish(self._key, "|".join([secret, *places]), deadline)
        except BaseException:
            listener.close()
            raise
        return listener

    def dial(self, timeout: float) -> socket.socket:
        if not self._places:
            secret, *self._places = self._space.look_up(self._key, time.monotonic() + timeout).split("|")
            self._take(secret)
        return super().dial(timeout)

    def is_here(self) -> bool:
        return True


def first_that_answers(places: Sequence[str], timeout: float) -> tuple[socket.socket, str]:
    """Connects to the first place that answers. Returns the connection and the place.

    Raises:
        OSError: no place answers.
    """
    failure = OSError("rank 0's host has no address")
    patience = min(timeout, _ANSWERS) if len(places) > 1 else timeout
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            return socket.create_connection((host.strip("[]"), int(port)), patience), place
        except OSError as error:
            failure = error
    raise failure


def watch(descriptor: int) -> None:
    """Makes the system find out, within a few seconds, when the host at the other end of a TCP connection is gone."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connected:
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3)):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _is_address_of_this_host(name: str) -> bool:
    """Returns whether one of a name's addresses belongs to this host, so that a socket can be bound to it."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as tried:
                tried.bind(address)
                return True
    return False


def _exactly(source: socket.socket, count: int) -> bytes:
    """Reads count bytes. Raises ConnectionError if the other end closes the connection first."""
    read = b""
    while len(read) < count:
        more = source.recv(count - len(read))
        if not more:
            raise ConnectionError
        read += more
    return read
