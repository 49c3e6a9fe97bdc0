"""Greets the processes that connect to a place, and drops those that do not belong to the job.

There can be any number of these strangers, and each of them can be silent or send anything. A few at a time are
listened to, and only for as long as nobody newer comes.
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
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ringreduce.descriptors import above_standard
from ringreduce.errors import Error, TimeoutError
from ringreduce.start.meeting_places import Connection, Place, TurnedAway

__all__ = [
    "GREETING",
    "MAGIC",
    "MAGIC_NEWCOMER",
    "MAGIC_NEWCOMER_TLS",
    "MAGIC_TLS",
    "Guest",
    "Reception",
    "dial",
]

GREETING = struct.Struct("=8sii")  # magic, rank, size
MAGIC, MAGIC_TLS = b"ringrdc1", b"ringrdct"
MAGIC_NEWCOMER, MAGIC_NEWCOMER_TLS = b"ringrdcn", b"ringrdcs"
_STRANGERS = 64  # open connections that have not greeted
_PATIENCE = 10.0  # seconds to retry while a process at rank 0's address turns this rank away


class Guest(NamedTuple):
    """A process of the job that has greeted, and its connection."""

    rank: int
    size: int
    encrypts: bool
    connection: Connection


class Reception:
    """The greeting of those who connect to a listener.

    The listener, the strangers and the guests are in the selector. What is no stranger is the caller's to serve.
    """

    def __init__(
        self,
        place: Place,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        plain: bytes,
        tls: bytes,
    ) -> None:
        self.refused = 0  # connections with a different secret
        self._place, self._listener, self._selector = place, listener, selector
        self._magics = {plain: False, tls: True}
        self._strangers: dict[socket.socket, bytes] = {}  # the bytes received from each
        self._challenges: dict[socket.socket, bytes] = {}
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)

    def serves(self, talking: Any) -> bool:
        return talking is self._listener or talking in self._strangers

    def attend(self, talking: Any) -> Guest | None:
        """Listens to one that can be read. Returns a guest if it has just become one."""
        if talking is self._listener:
            self._accept()
            return None
        return self._listen(talking)

    def dismiss(self, guest: Guest) -> None:
        """Closes the connection of a guest that is not wanted."""
        self._selector.unregister(guest.connection.fileno())
        guest.connection.close()

    def close(self) -> None:
        for stranger in self._strangers:
            stranger.close()

    def _accept(self) -> None:
        try:
            with _signals_held_back(), above_standard():
                stranger, _ = self._listener.accept()
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
            self._drop(next(iter(self._strangers)))  # the oldest one
        stranger.setblocking(False)
        self._strangers[stranger] = b""
        self._challenges[stranger] = challenge
        self._selector.register(stranger, selectors.EVENT_READ)

    def _drop(self, stranger: socket.socket) -> None:
        self._selector.unregister(stranger)
        del self._strangers[stranger], self._challenges[stranger]
        stranger.close()

    def _listen(self, stranger: socket.socket) -> Guest | None:
        said = self._strangers[stranger]
        try:
            heard = stranger.recv(GREETING.size + self._place.proof_size - len(said))
        except BlockingIOError:
            return None
        except OSError:
            heard = b""
        said += heard
        if not heard or not any(magic.startswith(said[:8]) for magic in self._magics):
            self._drop(stranger)
            return None
        self._strangers[stranger] = said
        if len(said) < GREETING.size + self._place.proof_size:
            return None
        greeting, proof = said[: GREETING.size], said[GREETING.size :]
        if not self._place.accepts(stranger, self._challenges[stranger], greeting, proof):
            self.refused += 1
            self._drop(stranger)
            return None
        magic, rank, size = GREETING.unpack(greeting)
        del self._strangers[stranger], self._challenges[stranger]
        encrypts = self._magics[magic]
        # It stays in the selector, which shows if it dies.
        return Guest(rank, size, encrypts, self._place.encrypted(stranger, True) if encrypts else stranger)


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Blocks signals during accept(): a handler that raises in it could leak a descriptor."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dial(
    find: Callable[[], Place], greeting: bytes, deadline: float, missing: str
) -> tuple[Place, socket.socket]:
    """Connects to a place and greets whoever listens there.

    A process that turns this rank away may belong to a job that is about to end, so this rank tries again for a while.

    Args:
        find: returns the place, which may be another one in each attempt.
        missing: what a timeout says that has not happened.

    Raises:
        Error: the process there does not belong to the job.
        TimeoutError: nobody is there, with rank 0.
    """
    pause, why, until = 0.001, "", math.inf
    while True:
        try:
            place = find()
            return place, _greeted(place, greeting, deadline)
        except TurnedAway as error:
            why, until = why or str(error), min(until, time.monotonic() + _PATIENCE)
        except builtins.TimeoutError:
            pass
        except (ConnectionError, FileNotFoundError, BlockingIOError):
            why, until = "", math.inf
        except OSError as error:  # no route, or no such host: it may still come up
            why, until = error.strerror or str(error), math.inf
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out waiting for {missing}" + (why and f": {why}"), 0)
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
