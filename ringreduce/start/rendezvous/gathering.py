"""The meeting of ranks at a socket of rank 0.

On one host this is an abstract Unix socket, which vanishes with its owner. The kernel tells both ends which user the
other process belongs to. Across hosts it is a TCP port, and both ends prove that they know the job's secret
(:mod:`ringreduce.start.rendezvous.places`). Other processes that connect, or send anything but a rank's greeting, are
dropped, and the meeting continues. Over a network, TLS can encrypt what ranks send after the greeting.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import Any, Protocol

from ringreduce import log
from ringreduce.errors import Error, PeerLost, TimeoutError
from ringreduce.start.rendezvous.frames import DATA, lost, receive, send, tell
from ringreduce.start.rendezvous.named_places import place_named
from ringreduce.start.rendezvous.places import Connection, Place
from ringreduce.start.rendezvous.reception import Guest, Intent, Reception, dial, greeted, greeting_of

__all__ = ["Meeting", "join", "take_place"]

_WINDOW = 0.3  # seconds that a rank 0 that was started again waits for others, before it looks elsewhere
_VERDICT = 1.0  # seconds after the deadline for rank 0 to report which ranks are missing


class Meeting(Protocol):
    """One rank's end of the meeting."""

    def exchange(self, blob: bytes) -> list[bytes]:
        """Sends a blob to all ranks. Returns all ranks' blobs, in rank order."""

    def tell(self, error: Error) -> None:
        """Tells the ranks that still listen why this rank leaves."""

    def close(self) -> None:
        """Leaves the meeting."""


def join(where: str | Place, rank: int, size: int, deadline: float, encrypt: bool = False) -> Meeting:
    """Meets the other ranks at the same place.

    Args:
        where: a place; any name, for ranks on one host; or a port of rank 0's host, as ``tcp://host:port``.
        deadline: when to give up, in seconds of time.monotonic().
        encrypt: whether to use TLS over a network. Must be the same on all ranks.

    Raises:
        ValueError: where is a port, and RINGREDUCE_SECRET is not set.
        PeerLost: a rank died while the others waited.
        TimeoutError: not all ranks came before the deadline.
        Error: two processes claim the same rank, or ranks disagree about the size or about encryption.
    """
    place = place_named(where) if isinstance(where, str) else where
    encrypt = encrypt and place.on_network
    if rank == 0:
        return _Host(place, size, deadline, encrypt)
    with log.waiting("meeting", rank, lambda: "rank 0 to start"):
        greeting = greeting_of(Intent.RANK, encrypt, rank, size)
        _, dialled = dial(lambda: place, Intent.RANK, greeting, deadline, "rank 0 to start")
    return _Guest(place, dialled, size, deadline, encrypt)


def take_place(
    place: Place, rank: int, size: int, deadline: float, encrypt: bool, none_left: bool = False
) -> Meeting | None:
    """Meets ranks that have been waiting in init() for a process that was killed before it came. Tries it once.

    Args:
        none_left: whether a place that others have taken, too, shows that the process that had it is dead: if all are
            taken again, there is no group.

    Returns:
        None if nobody waits.

    Raises:
        Error: as for join().
    """
    encrypt = encrypt and place.on_network
    now = time.monotonic()
    try:
        if rank == 0:
            return _Host(place, size, deadline, encrypt, now + _WINDOW, none_left)
        greeting = greeting_of(Intent.AGAIN, encrypt, rank, size)
        dialled = greeted(place, greeting, min(deadline, now + _VERDICT))
    except (OSError, _NobodyCame):  # also of a group that is running, and has its door there
        return None
    try:
        return _Guest(place, dialled, size, deadline, encrypt)
    except PeerLost:
        return None


class _NobodyCame(Exception):
    """None but ranks that were started again: the others may have a group already."""


class _Host:
    """Rank 0, which all other ranks connect to.

    Args:
        window: when to raise _NobodyCame instead, if this rank was started again.
        none_left: as for take_place().
    """

    def __init__(
        self,
        place: Place,
        size: int,
        deadline: float,
        encrypt: bool,
        window: float | None = None,
        none_left: bool = False,
    ) -> None:
        self._place = place
        self._encrypt = encrypt
        self._size = size
        self._deadline = deadline
        self._window = window
        self._peers: dict[int, Connection] = {}
        try:
            with place.listener(window or deadline) as listener, selectors.DefaultSelector() as selector:
                listener.listen(size + 16)
                with (
                    contextlib.closing(Reception(place, listener, selector, Intent.RANK)) as reception,
                    log.waiting("meeting", 0, lambda: f"ranks {self._missing()} to start"),
                ):
                    while len(self._peers) < size - 1:
                        self._welcome(reception, selector)
            if self._window and not none_left:
                raise _NobodyCame
            place.withdraw()  # before any rank can continue and publish a place of its own
            self._tell_all([b""])  # all ranks have come, and may send from now on
        except _NobodyCame:
            self.close()
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _welcome(self, reception: Reception, selector: selectors.BaseSelector) -> None:
        until = self._window or self._deadline
        ready = selector.select(max(until - time.monotonic(), 0))
        if self._window and time.monotonic() > self._window:
            raise _NobodyCame
        if not ready:
            missing = self._missing()
            text = f"rank 0 timed out waiting for ranks {missing} to start{reception.refusals()}"
            raise TimeoutError(text, missing[0])
        for key, _ in ready:
            talking: Any = key.fileobj
            if reception.serves(talking):
                guest = reception.attend(talking)
                if guest is None:
                    continue
                if self._expects(guest):
                    self._seat(guest)
                else:
                    reception.dismiss(guest)
            elif talking.fileno() >= 0:  # not dropped just now
                # A rank sends nothing before all have come, so this one has died.
                rank = next(r for r, peer in self._peers.items() if peer.fileno() == talking.fileno())
                raise lost(rank)

    def _missing(self) -> list[int]:
        return sorted(set(range(1, self._size)) - set(self._peers))

    def _expects(self, guest: Guest) -> bool:
        """Returns whether to look at a guest more closely. One that was started again may be of another group."""
        fits = 0 < guest.rank < self._size and guest.size == self._size
        if guest.kind is Intent.AGAIN:
            return fits and guest.rank not in self._peers
        return fits or guest.size != self._size

    def _seat(self, guest: Guest) -> None:
        rank = guest.rank
        if guest.kind is Intent.RANK:
            self._window = None
        if guest.size != self._size:
            raise Error(
                f"ranks disagree about the size: rank {rank} says {guest.size} ranks, rank 0 says {self._size}"
            )
        if rank in self._peers:
            raise Error(f"two processes claim to be rank {rank}")
        self._peers[rank] = guest.connection
        if guest.encrypts != self._encrypt:
            one, other = (rank, 0) if guest.encrypts else (0, rank)
            raise Error(
                f"rank {one} encrypts, but rank {other} does not: init(encrypt=...) or RINGREDUCE_TLS must be the same "
                "on all ranks"
            )

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
                        raise lost(key.data)
                    blobs[key.data] = receive(peer, self._deadline, key.data)
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
                    send(peer, DATA, blob, self._deadline, rank)

    def _fail(self, error: BaseException) -> None:
        """Tells every rank why the meeting failed, and leaves it."""
        if not isinstance(error, Error):
            error = PeerLost("rank 0 was interrupted while the ranks were connecting", 0)
        self.tell(error)
        self.close()

    def tell(self, error: Error) -> None:
        for rank, peer in self._peers.items():
            tell(peer, error, rank)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


class _Guest:
    """Any other rank."""

    def __init__(
        self, place: Place, dialled: socket.socket, size: int, deadline: float, encrypt: bool
    ) -> None:
        self._size = size
        self._deadline = deadline
        self._host = place.encrypted(dialled, False) if encrypt else dialled
        receive(self._host, deadline + _VERDICT, 0)

    def exchange(self, blob: bytes) -> list[bytes]:
        with contextlib.suppress(PeerLost):  # read below why rank 0 has left
            send(self._host, DATA, blob, self._deadline, 0)
        return [receive(self._host, self._deadline + _VERDICT, 0) for _ in range(self._size)]

    def tell(self, error: Error) -> None:
        tell(self._host, error, 0)

    def close(self) -> None:
        self._host.close()
