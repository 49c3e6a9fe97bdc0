"""The meeting of ranks at a socket of rank 0.

On one host this is an abstract Unix socket, which vanishes with its owner. The kernel tells both ends which user the
other process belongs to. Across hosts it is a TCP port, and both ends prove that they know the job's secret
(:mod:`ringreduce.start.meeting_places`). Other processes that connect, or send anything but a rank's greeting, are
dropped, and the meeting continues. Over a network, TLS can encrypt what ranks send after the greeting.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import selectors
import signal
import socket
import struct
import time
from collections.abc import Iterator
from typing import Protocol

from ringreduce import log
from ringreduce.errors import Error, PeerLost, TimeoutError
from ringreduce.start.meeting_places import Connection, Place, TurnedAway, place_named

__all__ = ["Group", "join"]

_GREETING = struct.Struct("=8sii")  # magic, rank, size
_MAGIC, _MAGIC_TLS = b"ringrdc1", b"ringrdct"
_HEADER = struct.Struct("=Bi")  # kind, length
_DATA, _PEER_LOST, _TIMEOUT, _ERROR = range(4)
_LONGEST = 1 << 20  # bytes of a blob, checked before memory is allocated for it
_VERDICT = 1.0  # seconds after the deadline for rank 0 to report which ranks are missing
_PATIENCE = 10.0  # seconds to retry while a process at rank 0's address turns this rank away
_STRANGERS = 64  # open connections that have not greeted


class Group(Protocol):
    """One rank's end of the meeting."""

    def exchange(self, blob: bytes) -> list[bytes]:
        """Sends a blob to all ranks. Returns all ranks' blobs, in rank order."""

    def close(self) -> None:
        """Leaves the meeting."""


def join(name: str, rank: int, size: int, deadline: float, encrypt: bool = False) -> Group:
    """Meets the other ranks of the same name.

    Args:
        name: any name, for ranks on one host; or a port of rank 0's host, as ``tcp://host:port``.
        deadline: when to give up, in seconds of time.monotonic().
        encrypt: whether to use TLS over a network. Must be the same on all ranks.

    Raises:
        ValueError: name is a port, and RINGREDUCE_SECRET is not set.
        PeerLost: a rank died meanwhile.
        TimeoutError: not all ranks came before the deadline.
        Error: two processes claim the same rank, or ranks disagree about the size or about encryption.
    """
    place = place_named(name)
    encrypt = encrypt and place.on_network
    return (
        _Host(place, size, deadline, encrypt) if rank == 0 else _Guest(place, rank, size, deadline, encrypt)
    )


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Blocks signals during accept(): a handler that raises in it could leak a descriptor."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Host:
    """Rank 0, which all other ranks connect to."""

    def __init__(self, place: Place, size: int, deadline: float, encrypt: bool) -> None:
        self._place = place
        self._encrypt = encrypt
        self._size = size
        self._deadline = deadline
        self._peers: dict[int, Connection] = {}
        self._strangers: dict[socket.socket, bytes] = {}  # the bytes received from each
        self._challenges: dict[socket.socket, bytes] = {}
        self._refused = 0  # connections with a different secret
        try:
            with place.listener(deadline) as listener, selectors.DefaultSelector() as selector:
                listener.listen(size + 16)
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
                with log.waiting("meeting", 0, lambda: f"ranks {self._missing()} to start"):
                    while len(self._peers) < size - 1:
                        self._welcome(listener, selector)
            self._tell_all([b""])  # all ranks have come, and may send from now on
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            for stranger in self._strangers:
                stranger.close()

    def _welcome(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        ready = selector.select(max(self._deadline - time.monotonic(), 0))
        if not ready:
            missing = self._missing()
            text = f"rank 0 timed out waiting for ranks {missing} to start"
            if self._refused:
                text += f"; it has turned away {self._refused} connections with a different RINGREDUCE_SECRET"
            raise TimeoutError(text, missing[0])
        for key, _ in ready:
            talking = key.fileobj
            assert isinstance(talking, socket.socket)
            if talking is listener:
                self._accept(listener, selector)
            elif talking in self._strangers:
                self._greet(talking, selector)
            elif talking.fileno() >= 0:  # not dropped just now
                # A rank sends nothing before all have come, so this one has died.
                rank = next(r for r, peer in self._peers.items() if peer.fileno() == talking.fileno())
                raise PeerLost(f"rank {rank} died while the ranks were connecting", rank)

    def _missing(self) -> list[int]:
        return sorted(set(range(1, self._size)) - set(self._peers))

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            with _signals_held_back():
                stranger, _ = listener.accept()
        except OSError:
            return  # the connection is gone again
        try:
            challenge = self._place.challenge(stranger)
        except OSError:
            challenge = None
        if challenge is None:
            stranger.close()
            return
        if len(self._strangers) == _STRANGERS:
            self._drop(next(iter(self._strangers)), selector)  # the oldest one
        stranger.setblocking(False)
        self._strangers[stranger] = b""
        self._challenges[stranger] = challenge
        selector.register(stranger, selectors.EVENT_READ)

    def _drop(self, stranger: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.unregister(stranger)
        del self._strangers[stranger], self._challenges[stranger]
        stranger.close()

    def _greet(self, stranger: socket.socket, selector: selectors.BaseSelector) -> None:
        said = self._strangers[stranger]
        try:
            heard = stranger.recv(_GREETING.size + self._place.proof_size - len(said))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        said += heard
        if not heard or not any(magic.startswith(said[:8]) for magic in (_MAGIC, _MAGIC_TLS)):
            return self._drop(stranger, selector)
        self._strangers[stranger] = said
        if len(said) < _GREETING.size + self._place.proof_size:
            return None
        greeting, proof = said[: _GREETING.size], said[_GREETING.size :]
        if not self._place.accepts(stranger, self._challenges[stranger], greeting, proof):
            self._refused += 1
            return self._drop(stranger, selector)
        magic, rank, size = _GREETING.unpack(greeting)
        if size != self._size:
            raise Error(
                f"ranks disagree about the size: rank {rank} says {size} ranks, rank 0 says {self._size}"
            )
        if not 0 < rank < size:
            return self._drop(stranger, selector)
        if rank in self._peers:
            raise Error(f"two processes claim to be rank {rank}")
        del self._strangers[stranger], self._challenges[stranger]
        # It stays in the selector, which shows if it dies.
        encrypts = magic == _MAGIC_TLS
        self._peers[rank] = self._place.encrypted(stranger, True) if encrypts else stranger
        if encrypts != self._encrypt:
            one, other = (rank, 0) if encrypts else (0, rank)
            raise Error(
                f"rank {one} encrypts, but rank {other} does not: init(encrypt=...) or RINGREDUCE_TLS must be the same "
                "on all ranks"
            )
        return None

    def exchange(self, blob: bytes) -> list[bytes]:
        try:
            return self._exchange(blob)
        except BaseException as error:
            self._fail(error)
            raise

    def _exchange(self, blob: bytes) -> list[bytes]:
        blobs: dict[int, bytes] = {0: blob}
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while len(blobs) < self._size:
                ready = selector.select(max(self._deadline - time.monotonic(), 0))
                if not ready:
                    missing = min(set(self._peers) - set(blobs))
                    raise TimeoutError(f"rank 0 timed out waiting for rank {missing}", missing)
                for key, _ in ready:
                    peer = self._peers[key.data]
                    if key.data in blobs:  # too early for its next blob: the rank has died
                        raise _lost(key.data)
                    blobs[key.data] = _receive(peer, self._deadline, key.data)
        ordered = [blobs[rank] for rank in range(self._size)]
        self._tell_all(ordered)
        return ordered

    def _tell_all(self, blobs: list[bytes]) -> None:
        """Sends all blobs to every rank, and ignores ranks that have died.

        Some ranks have all blobs by now, and must not see rank 0 fail. The next exchange, or the engine, will find the
        dead rank.
        """
        for rank, peer in self._peers.items():
            with contextlib.suppress(PeerLost):
                for blob in blobs:
                    _send(peer, _DATA, blob, self._deadline, rank)

    def _fail(self, error: BaseException) -> None:
        """Tells every rank why the meeting failed."""
        if not isinstance(error, Error):
            error = PeerLost("rank 0 was interrupted while the ranks were connecting", 0)
        kinds: dict[type[Error], int] = {PeerLost: _PEER_LOST, TimeoutError: _TIMEOUT}
        kind = kinds.get(type(error), _ERROR)
        culprit = getattr(error, "rank", None)
        text = str(error)
        payload = struct.pack("=i", -1 if culprit is None else culprit) + text.encode()[:4096]
        for rank, peer in self._peers.items():
            with contextlib.suppress(Error, OSError):
                _send(peer, kind, payload, time.monotonic() + 0.1, rank)
        self.close()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


class _Guest:
    """Any other rank."""

    def __init__(self, place: Place, rank: int, size: int, deadline: float, encrypt: bool) -> None:
        self._size = size
        self._deadline = deadline
        with log.waiting("meeting", rank, lambda: "rank 0 to start"):
            dialled = _dial(place, _GREETING.pack(_MAGIC_TLS if encrypt else _MAGIC, rank, size), deadline)
        self._host = place.encrypted(dialled, False) if encrypt else dialled
        _receive(self._host, deadline + _VERDICT, 0)

    def exchange(self, blob: bytes) -> list[bytes]:
        with contextlib.suppress(PeerLost):  # read below why rank 0 has left
            _send(self._host, _DATA, blob, self._deadline, 0)
        return [_receive(self._host, self._deadline + _VERDICT, 0) for _ in range(self._size)]

    def close(self) -> None:
        self._host.close()


def _dial(place: Place, greeting: bytes, deadline: float) -> socket.socket:
    """Connects to rank 0 and greets it.

    A process that turns this rank away may belong to a job that is about to end, so this rank tries again for a while.
    """
    pause, why, until = 0.001, "", math.inf
    while True:
        try:
            return _greeted(place, greeting, deadline)
        except TurnedAway as error:
            why, until = why or str(error), min(until, time.monotonic() + _PATIENCE)
        except builtins.TimeoutError:
            pass
        except (ConnectionError, FileNotFoundError, BlockingIOError):
            why, until = "", math.inf
        except OSError as error:  # no route, or no such host: it may still come up
            why, until = error.strerror or str(error), math.inf
        if time.monotonic() > deadline:
            raise TimeoutError("timed out waiting for rank 0 to start" + (why and f": {why}"), 0)
        if time.monotonic() > until:
            raise Error(why)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _greeted(place: Place, greeting: bytes, deadline: float) -> socket.socket:
    dialled = place.dial(max(deadline - time.monotonic(), 0.001))
    try:
        place.greet(dialled, greeting)
    except BaseException:
        dialled.close()
        raise
    return dialled


def _lost(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} died while the ranks were connecting", rank)


def _send(to: Connection, kind: int, payload: bytes, deadline: float, rank: int) -> None:
    if len(payload) > _LONGEST:
        raise ValueError(f"cannot exchange a blob of {len(payload)} bytes; the limit is {_LONGEST}")
    to.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        to.sendall(_HEADER.pack(kind, len(payload)) + payload)
    except builtins.TimeoutError as error:
        raise TimeoutError(f"timed out sending to rank {rank}", rank) from error
    except OSError as error:
        raise _lost(rank) from error


def _receive(source: Connection, deadline: float, rank: int) -> bytes:
    kind, length = _HEADER.unpack(_read(source, _HEADER.size, deadline, rank))
    if not 0 <= length <= _LONGEST or kind > _ERROR:
        raise Error(f"rank {rank} sent bytes that are not part of the exchange")
    payload = _read(source, length, deadline, rank)
    if kind == _DATA:
        return payload
    (culprit,) = struct.unpack_from("=i", payload)
    text = payload[4:].decode(errors="replace")
    if kind == _ERROR:
        raise Error(text)
    raise (PeerLost if kind == _PEER_LOST else TimeoutError)(text, culprit if culprit >= 0 else None)


def _read(source: Connection, length: int, deadline: float, rank: int) -> bytes:
    read = b""
    while len(read) < length:
        source.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            more = source.recv(length - len(read))
        except builtins.TimeoutError as error:
            raise TimeoutError(f"timed out waiting for rank {rank}", rank) from error
        except OSError as error:
            raise _lost(rank) from error
        if not more:
            raise _lost(rank)
        read += more
    return read
