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
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from ringreduce.descriptors import above_standard
from ringreduce.errors import Error, TimeoutError
from ringreduce.start.rendezvous.places import Connection, Place, TurnedAway, Unwanted

__all__ = [
    "Guest",
    "Intent",
    "Reception",
    "dial",
    "greeted",
    "greeting_of",
]


class Intent(Enum):
    """What a process comes for."""

    RANK = 0  # to meet the others in init()
    AGAIN = 1  # the same, started again: it does not know whether they are still there
    NEWCOMER = 2  # to be let into a group that is running

    @property
    def waits_for(self) -> Intent:
        """Whom to ask: a process that lets these in."""
        return Intent.NEWCOMER if self is Intent.NEWCOMER else Intent.RANK


_GREETING = struct.Struct("=8sii")  # magic, rank, size
_MAGICS = {
    b"ringrdc1": (Intent.RANK, False), b"ringrdct": (Intent.RANK, True),
    b"ringrdca": (Intent.AGAIN, False), b"ringrdcb": (Intent.AGAIN, True),
    b"ringrdcn": (Intent.NEWCOMER, False), b"ringrdcs": (Intent.NEWCOMER, True),
}  # fmt: skip
_STRANGERS = 64  # open connections that have not greeted
_NAMED = 4  # hosts that an error names
_PATIENCE = 10.0  # seconds to retry while a process at rank 0's address turns this rank away


def greeting_of(kind: Intent, encrypts: bool, rank: int = 0, size: int = 0) -> bytes:
    magic = next(magic for magic, meaning in _MAGICS.items() if meaning == (kind, encrypts))
    return _GREETING.pack(magic, rank, size)


class Guest(NamedTuple):
    """A process of the job that has greeted, and its connection."""

    kind: Intent
    rank: int
    size: int
    encrypts: bool
    connection: Connection


class Reception:
    """The greeting of those who connect to a listener.

    The listener, the strangers and the guests are in the selector. The caller serves everyone else in it.
    """

    def __init__(
        self,
        place: Place,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        kind: Intent,
    ) -> None:
        """``kind``: those who are wanted. Others of the job are told that they are not."""
        self._place, self._listener, self._selector, self._kind = place, listener, selector, kind
        self._refused: Counter[str] = Counter()  # connections, by host
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

    def refusals(self) -> str:
        """Returns a clause that says who could not prove to belong to the job, or ""."""
        if not self._refused:
            return ""
        times = self._refused.total()
        hosts = ", ".join(host for host, _ in self._refused.most_common(_NAMED))
        whence = f", from {hosts}{' and others' if len(self._refused) > _NAMED else ''}" if hosts else ""
        return (
            f"; it has turned away {times} connection{'s' if times > 1 else ''} with a different "
            f"{self._place.knows}{whence}"
        )

    def _refuse(self, stranger: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._refused[_host_of(stranger)] += 1

    def _accept(self) -> None:
        try:
            with _signals_held_back(), above_standard():
                stranger, _ = self._listener.accept()
        except OSError:
            return  # the connection is gone again
        try:
            challenge = self._place.challenge(stranger)
        except OSError:
            stranger.close()
            return
        if challenge is None:
            self._refuse(stranger)
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
            heard = stranger.recv(_GREETING.size + self._place.proof_size - len(said))
        except BlockingIOError:
            return None
        except OSError:
            heard = b""
        said += heard
        if not heard or not any(magic.startswith(said[:8]) for magic in _MAGICS):
            self._drop(stranger)
            return None
        self._strangers[stranger] = said
        if len(said) < _GREETING.size + self._place.proof_size:
            return None
        greeting, proof = said[: _GREETING.size], said[_GREETING.size :]
        magic, rank, size = _GREETING.unpack(greeting)
        kind, encrypts = _MAGICS[magic]
        wanted = kind.waits_for is self._kind
        accepted = self._place.accepts(stranger, self._challenges[stranger], greeting, proof, wanted)
        if not accepted:
            self._refuse(stranger)
        if not accepted or not wanted:
            self._drop(stranger)
            return None
        del self._strangers[stranger], self._challenges[stranger]
        # It stays in the selector, which shows if it dies.
        connection = self._place.encrypted(stranger, True) if encrypts else stranger
        return Guest(kind, rank, size, encrypts, connection)


def _host_of(stranger: socket.socket) -> str:
    """Returns the address of the other end, or "" if it is this host's."""
    name: Any = stranger.getpeername()
    return str(name[0]).removeprefix("::ffff:") if stranger.family != socket.AF_UNIX else ""


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Blocks signals during accept(): a handler that raises in it could leak a descriptor."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dial(
    find: Callable[[], Place],
    kind: Intent,
    greeting: bytes,
    deadline: float,
    missing: str,
    between: Callable[[], object] = lambda: None,
) -> tuple[Place, socket.socket]:
    """Connects to a place and greets whoever listens there.

    A process that turns this rank away may belong to a job that is about to end, so this rank tries again for a while.
    A newcomer waits longer for ranks that are still meeting: their group comes to the same place.

    Args:
        find: returns the place, which may be another one in each attempt.
        missing: what a timeout says that has not happened.
        between: what to do between two attempts.

    Raises:
        Error: the process there does not belong to the job.
        TimeoutError: nobody is there, with rank 0.
    """
    pause, why, until, refusals = 0.001, "", math.inf, 0
    while True:
        try:
            place = find()
            return place, greeted(place, greeting, deadline)
        except Unwanted as error:
            refusals += 1
            if kind is Intent.NEWCOMER:
                why, until = f"the ranks that meet {error} are still in init()", math.inf
            else:
                why = f"a group that is running answers {error}, which only ringreduce.join() leads into"
                until = min(until, time.monotonic() + _PATIENCE)
        except TurnedAway as error:
            refusals += 1
            why, until = why or str(error), min(until, time.monotonic() + _PATIENCE)
        except builtins.TimeoutError:
            pass
        except (ConnectionError, FileNotFoundError, BlockingIOError):
            why, until = why if refusals else "", math.inf
        except OSError as error:  # no route, or no such host: it may still come up
            until = math.inf
            if not refusals:
                why = error.strerror or str(error)
        if time.monotonic() > deadline:
            how_often = "once" if refusals == 1 else f"{refusals} times"
            times = f"this process was turned away {how_often}: " if refusals else ""
            raise TimeoutError(f"timed out waiting for {missing}" + (why and f"; {times}{why}"), 0)
        if time.monotonic() > until:
            raise Error(why)
        between()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def greeted(place: Place, greeting: bytes, deadline: float) -> socket.socket:
    """Connects to a place and greets whoever listens there, once."""
    dialled = place.dial(max(deadline - time.monotonic(), 0.001))
    try:
        place.greet(dialled, greeting)
    except BaseException:
        dialled.close()
        raise
    return dialled
