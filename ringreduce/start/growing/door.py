"""The door of a running group: a socket of one member, to which newcomers connect.

A thread of the member greets them, checks that they fit the group, and keeps them until the group lets them in.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from ringreduce.descriptors import above_standard
from ringreduce.errors import Error
from ringreduce.living import Living
from ringreduce.start.rendezvous.frames import DATA, Again, receive, send, tell
from ringreduce.start.rendezvous.network_places import watch
from ringreduce.start.rendezvous.places import Connection, Place
from ringreduce.start.rendezvous.reception import Guest, Intent, Reception

__all__ = ["ANSWER", "Applicant", "Door", "Terms"]

ANSWER = struct.Struct("=i?")  # the attempt's number, whether it has failed; then a blob, or why
_INTRODUCTION = 5.0  # seconds for a newcomer to introduce itself
_BACKLOG = 128
_SHARE_OF_RANK, _LONGEST_PAUSE = 7, 0.05  # times as long as it has taken to serve the door, and seconds


@dataclass(frozen=True)
class Terms:
    """What a process must have in common with a group."""

    version: str
    transport: str
    reproducible: bool
    encrypt: bool
    checksums: bool
    fingerprint: str

    def complaint(self, theirs: Terms) -> str:
        """Returns why a process with other terms cannot join, or ""."""
        if theirs == self:
            return ""
        what, own, other = next(
            (what, own, asdict(theirs)[what])
            for what, own in asdict(self).items()
            if own != asdict(theirs)[what]
        )
        if what == "fingerprint":
            return "its fingerprint differs from the group's, so the two do not compute the same"
        names = {"version": "the version of ringreduce", "checksums": "RINGREDUCE_TCP_CHECK"}
        return (
            f"{names.get(what, what)} must be the same: it is {own!r} in the group, {other!r} in the newcomer"
        )


class Applicant:
    """A process at the door."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self.connection, self.terms = connection, terms
        self.rank = 0  # that it gets if the attempt succeeds
        self.suspected = 0  # how often it may have been the reason why an attempt failed

    def tell(self, blob: bytes, deadline: float) -> None:
        send(self.connection, DATA, blob, deadline, self.rank)

    def answer(self, number: int, deadline: float) -> tuple[bool, bytes]:
        """Returns what it sends in an attempt: whether it has failed, and the blob. Drops answers to earlier ones."""
        while True:
            said = receive(self.connection, deadline, self.rank)
            if len(said) < ANSWER.size:
                raise Error(f"rank {self.rank} sent bytes that are not part of the exchange")
            answered, failed = ANSWER.unpack_from(said)
            if answered == number:
                return failed, said[ANSWER.size :]

    def refuse(self, why: str) -> None:
        refuse(self.connection, why)

    def call_off(self, why: str) -> None:
        """Says that the attempt has failed. The next attempt finds out whether the newcomer has died since."""
        tell(self.connection, Again(why), self.rank)


def refuse(newcomer: Connection, why: str) -> None:
    """Tells a newcomer why it cannot join, if it still listens."""
    tell(newcomer, Error(f"the group does not let this process in: {why}"), 0)
    newcomer.close()


class Door:
    """Lets processes wait for the group at a place."""

    @above_standard()
    def __init__(self, place: Place, terms: Terms, deadline: float) -> None:
        """Raises TimeoutError if another process listens at the place until the deadline."""
        self._terms = terms
        self._lock = threading.Lock()  # of what follows
        self._waiting: list[Applicant] = []
        self._introducing: Connection | None = None  # a guest, which is not in the selector
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._listener = place.listener(deadline)
        self._listener.listen(_BACKLOG)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._reception = Reception(place, self._listener, self._selector, Intent.NEWCOMER)
        threading.Thread(target=self._serve, name="ringreduce-door", daemon=True).start()
        _open.add(self)

    def count(self) -> int:
        """Returns the number of newcomers."""
        with self._lock:
            return len(self._waiting)

    def expect(self, terms: Terms) -> None:
        """Changes what newcomers must have in common with the group, and refuses those that do not."""
        with self._lock:
            self._terms = terms
            unfit = [one for one in self._waiting if terms.complaint(one.terms)]
            for one in unfit:
                self._leave(one)
        for one in unfit:
            one.refuse(terms.complaint(one.terms))

    def take(self, most: int | None) -> list[Applicant]:
        """Hands over the newcomers that have waited longest."""
        with self._lock:
            taken = self._waiting[:most]
            for one in taken:
                self._leave(one)
        return taken

    def put_back(self, newcomers: list[Applicant]) -> None:
        """Lets newcomers wait again, before all others."""
        with self._lock:
            for place, one in enumerate(newcomers):
                self._enter(one, place)

    def close(self) -> None:
        """Ends the connections of all newcomers, which then look for another door."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _open.discard(self)
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def _enter(self, newcomer: Applicant, place: int) -> None:
        if self._closed:
            return newcomer.connection.close()
        self._waiting.insert(place, newcomer)
        self._selector.register(newcomer.connection, selectors.EVENT_READ, newcomer)

    def _leave(self, newcomer: Applicant) -> None:
        self._waiting.remove(newcomer)
        self._selector.unregister(newcomer.connection)

    def _serve(self) -> None:
        while not self._closed:
            ready = self._selector.select()
            began = time.monotonic()
            for key, _ in ready:
                talking: Any = key.fileobj
                if self._closed:
                    break
                if self._reception.serves(talking):
                    self._attend(talking)
                elif isinstance(key.data, Applicant):
                    self._hear(key.data)
            # Strangers may come faster than they can be dropped. They get a share of this process's time.
            time.sleep(min(_SHARE_OF_RANK * (time.monotonic() - began), _LONGEST_PAUSE))
        self._close()

    def _attend(self, talking: Any) -> None:
        with self._lock:
            guest = self._reception.attend(talking)
            if guest is None:
                return
            self._selector.unregister(guest.connection.fileno())
            self._introducing = guest.connection
        self._introduce(guest)
        with self._lock:
            self._introducing = None

    def _introduce(self, guest: Guest) -> None:
        """Hears a guest's terms. It has proved that it belongs to the job, so it may be waited for."""
        deadline = time.monotonic() + _INTRODUCTION
        watch(guest.connection.fileno())
        try:
            send(guest.connection, DATA, b"", deadline, guest.rank)
            terms = Terms(**json.loads(receive(guest.connection, deadline, guest.rank)))
        except (ValueError, TypeError):
            return refuse(guest.connection, "its version of ringreduce has other terms")
        except (Error, OSError, Again):
            return guest.connection.close()
        newcomer = Applicant(guest.connection, terms)
        with self._lock:
            why = self._terms.complaint(terms)
            if not why:
                self._enter(newcomer, len(self._waiting))
        if why:
            newcomer.refuse(why)
        return None

    def _hear(self, newcomer: Applicant) -> None:
        """Reads from a newcomer that waits. It sends nothing except late answers to an attempt that has failed."""
        with self._lock:
            if newcomer not in self._waiting:
                return
            try:
                receive(newcomer.connection, time.monotonic() + 1, newcomer.rank)
            except (Error, OSError, Again):
                self._leave(newcomer)
                newcomer.connection.close()

    def _close(self) -> None:
        with self._lock:
            for newcomer in self._waiting:
                newcomer.connection.close()
            self._waiting.clear()
            self._reception.close()
            for end in (self._listener, self._wake, self._woken):
                end.close()
            self._selector.close()

    def begin_fork(self) -> None:
        self._lock.acquire()

    def end_fork(self, child: bool) -> None:
        """In the child, which has no thread, closes everything: newcomers must not take it for the group."""
        if child:
            self._closed = True
            ends: list[Any] = [key.fileobj for key in (self._selector.get_map() or {}).values()]
            for end in [*ends, self._introducing, self._wake, self._selector]:
                if end is not None:
                    end.close()
        self._lock.release()


_open: Living[Door] = Living()
_forking = threading.local()  # its doors


def _before_fork() -> None:
    _forking.doors = list(_open)
    for door in _forking.doors:
        door.begin_fork()


def _after_fork(child: bool) -> None:
    for door in _forking.doors:
        door.end_fork(child)
    del _forking.doors
    if child:
        _open.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(False),
    after_in_child=lambda: _after_fork(True),
)
