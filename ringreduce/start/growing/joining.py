"""How a newcomer joins a group that is running: knocks at its door, and starts an engine with its members."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict

from ringreduce import _engine
from ringreduce.communicator import Communicator
from ringreduce.descriptors import above_standard
from ringreduce.errors import Error, PeerLost, TimeoutError
from ringreduce.start.growing.door import ANSWER
from ringreduce.start.growing.growth import GroupGrowth
from ringreduce.start.growing.origin import Origin
from ringreduce.start.launchers import is_newcomer, launcher_of, tell_launcher
from ringreduce.start.rendezvous.frames import DATA, Again, receive, send
from ringreduce.start.rendezvous.network_places import watch
from ringreduce.start.rendezvous.places import Connection
from ringreduce.start.rendezvous.reception import Intent, dial, greeted, greeting_of

__all__ = ["Newcomer"]

_ANSWERS = 1.0  # seconds for the process at a door to answer
_PAUSE = 0.05  # seconds before the newcomer looks for another door


class _Over(Exception):
    """An attempt has failed. The newcomer asks again, elsewhere if the connection is lost, unless there is an error."""

    def __init__(self, lost: bool, error: Error | None = None) -> None:
        super().__init__()
        self.lost, self.error = lost, error


class _Met(Exception):
    """The group has not started without this process, which was started again, and has taken its place in init()."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self.comm = comm


class Newcomer:
    """A process that asks to join a group."""

    def __init__(self, origin: Origin, fingerprint: str, timeout: float) -> None:
        self._origin, self._timeout = origin, timeout
        self._growth = GroupGrowth(origin, fingerprint)
        self._deadline = time.monotonic() + timeout
        self._find = origin.door(timeout)
        self._place = origin.meeting(timeout) if self._may_be_awaited() else None
        self._why = ""  # of the latest attempt that has failed

    @above_standard()
    def wait(self, for_init: bool = True) -> Communicator:
        """Returns the communicator. Raises what ringreduce.join() raises.

        Args:
            for_init: whether this may be the first group of the job.
        """
        if not for_init:
            self._place = None
        try:
            comm = self._join()
        except _Met as met:
            comm = met.comm
        tell_launcher()
        return comm

    @above_standard()
    def wait_for_init(self) -> Communicator | None:
        """Returns the first group of the job, if it has not started without this process, or None once it runs."""
        greeting = greeting_of(Intent.NEWCOMER, self._origin.encrypts())
        while self._place is not None and time.monotonic() < self._deadline:
            try:
                self._take_place()
                greeted(self._find(), greeting, time.monotonic() + _ANSWERS).close()
                return None  # that was its door
            except _Met as met:
                tell_launcher()
                return met.comm
            except OSError:
                time.sleep(_PAUSE)
        return None

    def _join(self) -> Communicator:
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
            greeting = greeting_of(Intent.NEWCOMER, encrypts)
            missing = "a group that lets newcomers in" + self._why
            place, dialled = dial(
                self._find, Intent.NEWCOMER, greeting, self._deadline, missing, self._take_place
            )
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

    def _may_be_awaited(self) -> bool:
        return is_newcomer() and self._origin.known is not None and self._origin.known.size > 1

    def _take_place(self) -> None:
        """Raises _Met if the other ranks of the job still wait for this one, which was killed before it came."""
        known = self._origin.known
        if self._place is None or known is None:
            return
        from ringreduce.start.rendezvous.gathering import take_place

        none_left = launcher_of(known).restarts_all
        encrypts = self._origin.encrypts()
        group = take_place(self._place, known.rank, known.size, self._deadline, encrypts, none_left)
        if group is None:
            return
        with contextlib.closing(group):
            try:
                engine = self._origin.connect(known.rank, known.size, group.exchange, self._timeout)
            except PeerLost:  # the others start over, too
                return
        raise _Met(Communicator(engine, self._timeout, self._origin.growth))

    def _hear(self, door: Connection) -> bytes:
        try:
            return receive(door, self._deadline, 0)
        except Again as again:
            self._why = f" (the latest attempt has failed: {again})" if str(again) else self._why
            raise _Over(False) from None
        except PeerLost:
            raise _Over(True) from None
        except TimeoutError:
            text = f"timed out after {self._timeout:g} s waiting for the group to call grow()" + self._why
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
        comm = Communicator(engine, self._timeout, self._origin.growth, self._growth)
        try:
            comm.barrier(timeout=max(self._deadline - time.monotonic(), 0.001))
        except Error:
            engine.leave()
            self._hear(door)  # what came of the attempt
            raise
        return comm
