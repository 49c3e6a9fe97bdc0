"""Places to meet on a network, where both ends prove that they know the job's secret."""

from __future__ import annotations

import builtins
import contextlib
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ringreduce import _engine
from ringreduce.start import munge
from ringreduce.start.rendezvous.places import Connection, Space, TurnedAway, Unwanted, bind, exactly

__all__ = ["MungePlace", "NetworkPlace", "PublishedPlace", "StoreSpace", "torch_store_of_rank_0", "watch"]

_NONCE = 16
_PROOF = 32
_ANSWERS = 1.0  # seconds to wait for an address before the next one is tried


class NetworkPlace:
    """A port of rank 0's host, which may be one of several.

    Rank 0 sends a random number. The guest greets it with another random number and its proof (``Proof`` in
    csrc/transport/tcp/secret.h), and rank 0 answers with its own. So it says nothing to those who know no secret.
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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken = "is in use by another program, or by another job that is still starting"
        bind(listener, ("", self._port), deadline, f"port {self._port} of its host {taken}")
        return listener

    def withdraw(self) -> None:
        pass

    def _proof(self, challenge: bytes, nonce: bytes, greeting: bytes) -> _engine.Proof:
        return _engine.Proof(self._secret, challenge + nonce + greeting)

    def challenge(self, stranger: socket.socket) -> bytes | None:
        nonce = secrets.token_bytes(_NONCE)
        stranger.send(self._invitation + nonce)  # never blocks: the connection is empty
        return nonce

    def accepts(
        self, stranger: socket.socket, challenge: bytes, greeting: bytes, proof: bytes, wanted: bool
    ) -> bool:
        nonce, claimed = proof[:_NONCE], proof[_NONCE:]
        ours = self._proof(challenge, nonce, greeting)
        if not ours.holds("dial", claimed):
            return False
        stranger.send(ours.of("accept" if wanted else "busy"))
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
            challenge = exactly(dialled, _NONCE)
            proof = self._proof(challenge, nonce, greeting)
            dialled.sendall(greeting + nonce + proof.of("dial"))
            answer = exactly(dialled, _PROOF)
        except builtins.TimeoutError as error:
            raise TurnedAway(f"{there} sends nothing: it is not ringreduce") from error
        except ConnectionError as error:
            raise TurnedAway(
                f"{there} closes the connection: its {self.knows} differs from this rank's, or it is not ringreduce"
            ) from error
        if proof.holds("busy", answer):
            raise Unwanted(f"at {self._places[-1]}")
        if not proof.holds("accept", answer):
            raise TurnedAway(f"{there} does not know this rank's {self.knows}")

    def _be_invited(self, dialled: socket.socket, there: str) -> None:
        """Reads the invitation."""

    def encrypted(self, greeted: socket.socket, begins: bool) -> Connection:
        from ringreduce.start.rendezvous.encrypted import Encrypted

        return Encrypted(greeted, begins, self._secret)


class MungePlace(NetworkPlace):
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
        (length,) = self._LENGTH.unpack(exactly(dialled, self._LENGTH.size))
        try:
            self._secret = munge.decode(exactly(dialled, length))
        except munge.MungeError as error:
            raise TurnedAway(f"{there} does not belong to this user on this cluster: {error}") from error


class PublishedPlace(NetworkPlace):
    """A free port of rank 0's host. Rank 0 publishes it, with a secret that it makes.

    Args:
        space: where it is published.
        key: under which name.
        changes: whether it may be published again, by another process that takes the place of rank 0.
    """

    knows = "secret"

    def __init__(self, space: Space, key: str, changes: bool = False) -> None:
        super().__init__([], b"")
        self._space, self._key, self._changes = space, f"ringreduce-{key}", changes
        self._published = ""

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

    def withdraw(self) -> None:
        """Takes it back from a store, so that who reads the store later does not learn the secret."""
        if isinstance(self._space, StoreSpace):
            self._space.withdraw(self._key)

    def dial(self, timeout: float) -> socket.socket:
        if self._changes or not self._published:
            published = self._space.look_up(self._key, time.monotonic() + timeout)
            if published != self._published:
                self._published = published
                secret, *self._places = published.split("|")
                self._take(secret)
        return super().dial(timeout)

    def is_here(self) -> bool:
        return True


class StoreSpace:
    """The space of a store with set and get."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def publish(self, key: str, text: str, deadline: float) -> None:
        self._store.set(key, text.encode())

    def withdraw(self, key: str) -> None:
        wipe = getattr(self._store, "delete_key", lambda key: self._store.set(key, b""))
        with contextlib.suppress(RuntimeError):  # some stores cannot delete
            wipe(key)

    def look_up(self, key: str, deadline: float) -> str:
        try:
            if hasattr(self._store, "wait"):
                self._store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
            return bytes(self._store.get(key)).decode()
        except RuntimeError as error:  # torch's stores raise their own errors for timeouts
            if "timeout" not in str(error).lower():
                raise
            raise builtins.TimeoutError from error


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


def torch_store_of_rank_0(
    rank: int, size: int, timeout: timedelta, told: Callable[[list[str]], list[str]]
) -> Any:
    """Opens a TCPStore of torch on rank 0, for a process group, and connects the other ranks to it.

    Args:
        told: a collective function that returns rank 0's argument on all ranks.
    """
    from torch._C._distributed_c10d import TCPStore

    if rank == 0:
        store = TCPStore("localhost", 0, size, True, timeout, wait_for_workers=False)
        told(_engine.places_here(store.port))
        return store
    connection, place = first_that_answers(told([]), timeout.total_seconds())
    connection.close()
    host, _, port = place.rpartition(":")
    return TCPStore(host.strip("[]"), int(port), size, False, timeout)


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
