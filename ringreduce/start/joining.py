"""How a newcomer joins a group that is running: knocks at its door, and starts an engine with its members."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict

from ringreduce import _engine
from ringreduce.communicator import Communicator
from ringreduce.errors import Error, PeerLost, TimeoutError
from ringreduce.start.door import ANSWER
from ringreduce.start.frames import DATA, Again, receive, send
from ringreduce.start.growth import Growth
from ringreduce.start.meeting_places import Connection, watch
from ringreduce.start.origin import Origin
from ringreduce.start.reception import GREETING, MAGIC_NEWCOMER, MAGIC_NEWCOMER_TLS, dial

__all__ = ["Newcomer"]

_PAUSE = 0.05  # seconds before the newcomer looks for another door


class _Over(Exception):
    """An attempt has failed. The newcomer asks again, elsewhere if the connection is lost, unless there is an error."""

    def __init__(self, lost: bool, error: Error | None = None) -> None:
        super().__init__()
        self.lost, self.error = lost, error


class Newcomer:
    """A process that asks a group in."""

    def __init__(self, origin: Origin, fingerprint: str, timeout: float) -> None:
        self._origin, self._timeout = origin, timeout
        self._growth = Growth(origin, fingerprint)
        self._deadline = time.monotonic() + timeout
        self._find = origin.door(timeout)

    def wait(self) -> Communicator:
        """Returns the communicator. Raises what ringreduce.join() raises."""
        while True:
            door = self._knock()
            try:
                while True:
                    try:
                        return self._come_in(door)
                    except _Over as over:
                        if over.error is not None:
                            raise over.error from None
                        if over.lost:
                            break
            finally:
                door.close()
            time.sleep(_PAUSE)

    def _knock(self) -> Connection:
        encrypts = self._origin.encrypts()
        while True:
            greeting = GREETING.pack(MAGIC_NEWCOMER_TLS if encrypts else MAGIC_NEWCOMER, 0, 0)
            place, dialled = dial(self._find, greeting, self._deadline, "a group that lets newcomers in")
            watch(dialled.fileno())
            door = place.encrypted(dialled, False) if encrypts else dialled
            try:
                receive(door, self._deadline, 0)
                terms = asdict(self._origin.terms(self._growth.fingerprint))
                send(door, DATA, json.dumps(terms).encode(), self._deadline, 0)
                return door
            except PeerLost:  # the group has just closed its door
                door.close()
                time.sleep(_PAUSE)
            except BaseException:
                door.close()
                raise

    def _hear(self, door: Connection) -> bytes:
        try:
            return receive(door, self._deadline, 0)
        except Again:
            raise _Over(False) from None
        except PeerLost:
            raise _Over(True) from None
        except TimeoutError:
            text = f"timed out after {self._timeout:g} s waiting for the group to call grow()"
            raise _Over(True, TimeoutError(text, 0)) from None
        except Error as refusal:
            raise _Over(True, refusal) from None

    def _come_in(self, door: Connection) -> Communicator:
        invitation = json.loads(self._hear(door))
        size, number = invitation["size"], invitation["number"]

        def exchange(blob: bytes, failed: bool = False) -> list[bytes]:
            with contextlib.suppress(PeerLost):  # read below
                send(door, DATA, ANSWER.pack(number, failed) + blob, self._deadline, 0)
            return [self._hear(door) for _ in range(size)]

        engine = None
        try:
            try:
                engine = self._origin.connect(invitation["rank"], size, exchange, self._timeout)
            except (Error, ValueError, RuntimeError, OSError) as error:
                exchange(str(error).encode(), failed=True)
                raise
            exchange(b"")
            return self._confirmed(engine, door)
        except BaseException:
            if engine is not None:
                engine.leave()
            raise

    def _confirmed(self, engine: _engine.Communicator, door: Connection) -> Communicator:
        """The barrier ends when all members have voted for the new group."""
        comm = Communicator(engine, self._timeout, self._origin, self._growth)
        try:
            comm.barrier(timeout=max(self._deadline - time.monotonic(), 0.001))
        except Error:
            engine.leave()
            self._hear(door)  # what came of the attempt
            raise
        return comm
