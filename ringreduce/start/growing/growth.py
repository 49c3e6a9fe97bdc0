"""How the members of a group admit newcomers.

To grow, a group starts a new engine, as init() does. The members exchange blobs over the old group, and the member at
the door passes on those of the newcomers. All then say whether they are connected, and the members vote over the old
group, so that all have the same result even if one dies during the vote.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ringreduce import _engine, log
from ringreduce.errors import Error
from ringreduce.start.growing.door import Applicant, Door
from ringreduce.start.growing.origin import Origin, fingerprint_of
from ringreduce.start.rendezvous.places import Place

if TYPE_CHECKING:
    from ringreduce.communicator import Communicator

__all__ = ["GroupGrowth", "NoDoor"]

T = TypeVar("T")

_ANSWERS = 10.0  # seconds for a newcomer to answer, before the group continues without it


class NoDoor(Error):
    """Newcomers cannot find the group. It is well otherwise."""


class _Outcome(NamedTuple):
    """The result of an exchange: the blobs of all ranks, or why it failed, and the newcomers at fault by their places.

    ``suspects``: others are suspected, and have another chance.
    """

    blobs: list[bytes]
    why: str = ""
    at_fault: tuple[int, ...] = ()
    suspects: bool = False


class _Failed(Exception):
    """An attempt has failed on all ranks, while the old group is well."""

    def __init__(self, outcome: _Outcome) -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


class _Lost(Exception):
    """The old group has failed."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


def _told_by_all(comm: Communicator, own: Callable[[], T], timeout: float) -> list[T]:
    """Calls own() on every rank and returns its results. If it raises on one rank, all ranks raise that error."""
    problem, found = None, None
    try:
        found = own()
    except (Error, OSError, ValueError, RuntimeError) as error:
        problem = error
    told: list[Any] = comm.all_gather_object((problem and str(problem), found), timeout=timeout)
    if isinstance(problem, ValueError):
        raise problem
    rank = next((rank for rank, (text, _) in enumerate(told) if text is not None), None)
    if rank is not None:
        raise NoDoor(f"rank {rank} cannot open a door for newcomers: {told[rank][0]}") from problem
    return [found for _, found in told]


@dataclass
class GroupGrowth:
    """What a rank knows of its group's door."""

    origin: Origin
    fingerprint: str = ""
    holder: int | None = None  # the rank at the door, once it is open
    door: Door | None = None  # there
    moved: bool = False  # to a group made from this one
    number: int = 0  # of attempts

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self.door is not None:
            self.door.close()
            self.door = None

    def successor(self) -> GroupGrowth:
        """Returns the state for a group made from this one, which takes over the door."""
        new = replace(self, holder=None, moved=False)
        self.door, self.moved = None, True
        return new

    # --- the door ----------------------------------------------------------------------------------------

    def pending(self, comm: Communicator, fingerprint: str | bytes | None) -> int:
        self._open(comm, fingerprint, comm.timeout)
        told = np.array([self.door.count() if self.door is not None else 0])
        comm.broadcast(told, self.holder or 0)
        return int(told[0])

    def _open(self, comm: Communicator, fingerprint: str | bytes | None, timeout: float) -> None:
        if self.moved:
            raise Error("a newer group has been made from this one by grow() or shrink(): use that")
        mine = self.fingerprint if fingerprint is None else fingerprint_of(fingerprint)
        if self.origin.alone:
            return
        if self.holder is not None and mine == self.fingerprint:
            return
        place: Place | None = None

        def find() -> tuple[bool, bool, str]:
            nonlocal place
            place = self.origin.door(timeout)()
            return self.door is not None, place.is_here(), mine

        told = _told_by_all(comm, find, timeout)
        unlike = next((rank for rank, (_, _, theirs) in enumerate(told) if theirs != told[0][2]), None)
        if unlike is not None:
            raise ValueError(f"fingerprint must be the same on all ranks: it differs on rank {unlike}")
        holder = max(range(comm.size), key=lambda rank: (told[rank][:2], -rank))

        def stand_there() -> None:
            assert place is not None
            terms = self.origin.terms(mine)
            if self.door is None and comm.rank == holder:
                self.door = Door(place, terms, time.monotonic() + min(timeout, _ANSWERS))
            elif self.door is not None:
                self.door.expect(terms)

        _told_by_all(comm, stand_there, timeout)
        self.holder, self.fingerprint = holder, mine

    # --- growing -----------------------------------------------------------------------------------------

    def grow(
        self, comm: Communicator, timeout: float, fingerprint: str | bytes | None
    ) -> _engine.Communicator:
        """Returns the engine of the new group. Raises what Communicator.grow() raises."""
        self._open(comm, fingerprint, timeout)
        most: int | None = None
        while True:
            attempt = _Attempt(comm, self, timeout, self.door.take(most) if self.door is not None else [])
            try:
                return attempt.run()
            except _Failed as failed:
                if attempt.newcomers == 0:
                    raise Error(f"the group could not be connected anew: {failed}") from None
                # Without a suspect, half of them are tried, and in the end each alone.
                at_fault, suspects = failed.outcome.at_fault, failed.outcome.suspects
                if attempt.newcomers == 1 and not suspects:
                    at_fault = (0,)
                most = None if at_fault or suspects else attempt.newcomers // 2
                attempt.dismiss(at_fault, str(failed))


class _Attempt:
    """One attempt of the members to connect with newcomers."""

    def __init__(
        self, comm: Communicator, growth: GroupGrowth, timeout: float, guests: list[Applicant]
    ) -> None:
        self._comm, self._growth, self._timeout = comm, growth, timeout
        self._guests = guests  # at the door
        self.newcomers = 0
        growth.number += 1

    def run(self) -> _engine.Communicator:
        engine = None
        try:
            # All ranks must be here in time. What follows has the group's own limit.
            waiting = self._over_old(
                lambda: self._comm.all_gather_object(len(self._guests), timeout=self._timeout)
            )
            self.newcomers = waiting[self._holder]
            self._invite()
            engine = self._connect()
            if not self._comm._c.agree(True, self._timeout):
                raise Error("a rank of the group has failed while it was growing")
        except _Failed:  # a newcomer may have noticed the death of a member first
            self._leave(engine)
            try:
                self._comm._c.agree(False, self._timeout)
            except Error:
                self._give_up(None)
                raise
            raise
        except _Lost as lost:
            self._give_up(engine)
            with contextlib.suppress(Error):
                self._comm._c.agree(False, self._timeout)
            raise lost.error from None
        except Error:
            self._give_up(engine)
            raise
        except BaseException:  # interrupted: the others must not wait for this rank
            self._give_up(engine)
            self._comm._c.leave()
            raise
        for guest in self._guests:
            guest.connection.close()
        engine.inherit(self._comm._c)
        return engine

    @property
    def _holder(self) -> int:
        return self._growth.holder or 0

    def _over_old(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Error as error:
            raise _Lost(error) from error

    def _leave(self, engine: _engine.Communicator | None) -> None:
        if engine is not None:
            engine.leave()

    def _give_up(self, engine: _engine.Communicator | None) -> None:
        """The newcomers wait for the group's next door, or behind this one."""
        self._leave(engine)
        self.dismiss((), "")

    def dismiss(self, at_fault: tuple[int, ...], why: str) -> None:
        """Refuses some newcomers, and lets the others wait again."""
        stay = [guest for place, guest in enumerate(self._guests) if place not in at_fault]
        for place in at_fault if self._guests else ():
            log.say("meeting", log.level_of(0), self._comm.rank, f"a newcomer is turned away: {why}")
            self._guests[place].refuse(why)
        for guest in stay:
            guest.call_off(why)
        if self._growth.door is not None:
            self._growth.door.put_back(stay)
        self._guests = []

    # --- the exchanges -----------------------------------------------------------------------------------

    def _invite(self) -> None:
        size = self._comm.size + self.newcomers
        for place, guest in enumerate(self._guests):
            guest.rank = self._comm.size + place
            invitation = {"rank": guest.rank, "size": size, "number": self._growth.number}
            with contextlib.suppress(Error):  # found out in the exchange
                guest.tell(json.dumps(invitation).encode(), time.monotonic() + _ANSWERS)

    def _connect(self) -> _engine.Communicator:
        try:
            engine = self._growth.origin.connect(
                self._comm.rank, self._comm.size + self.newcomers, self._exchange, self._comm.timeout
            )
        except (_Failed, _Lost):
            raise
        except (Error, ValueError, RuntimeError, OSError) as error:
            self._say_failed(error)
        try:
            self._exchange(b"")
        except BaseException:
            engine.leave()
            raise
        return engine

    def _say_failed(self, error: Exception) -> NoReturn:
        """Takes part in the others' next exchange, which then fails on all ranks."""
        self._meet((f"rank {self._comm.rank}: {error}", getattr(error, "rank", None)))
        raise AssertionError("an exchange with a failed rank has succeeded")

    def _exchange(self, blob: bytes) -> list[bytes]:
        return self._meet(blob)

    def _meet(self, own: bytes | tuple[str, int | None]) -> list[bytes]:
        comm, holder = self._comm, self._holder
        told = self._over_old(lambda: comm.gather_object(own, holder))
        mine = None
        if told is not None:
            mine = self._outcome(told + self._answers())
        outcome: _Outcome = self._over_old(lambda: comm.broadcast_object(mine, holder))
        if outcome.why:
            raise _Failed(outcome)
        for guest in self._guests:
            with contextlib.suppress(Error):
                for blob in outcome.blobs:
                    guest.tell(blob, time.monotonic() + _ANSWERS)
        return outcome.blobs

    def _answers(self) -> list[bytes | tuple[str, int | None]]:
        """Returns each newcomer's blob, or why it has none and the rank to blame."""
        deadline = time.monotonic() + _ANSWERS
        found: list[bytes | tuple[str, int | None]] = []
        for guest in self._guests:
            try:
                failed, blob = guest.answer(self._growth.number, deadline)
                found.append((blob.decode(errors="replace"), None) if failed else blob)
            except Error as error:
                found.append((str(error), guest.rank))
        return found

    def _outcome(self, told: list[bytes | tuple[str, int | None]]) -> _Outcome:
        problems = {rank: said for rank, said in enumerate(told) if isinstance(said, tuple)}
        if not problems:
            return _Outcome([said for said in told if isinstance(said, bytes)])
        first = self._comm.size
        silent = {rank for rank, (_, blamed) in problems.items() if rank == blamed}
        # Whoever complains, or is complained about, may only have noticed first that another newcomer has died. If it
        # happens again, it cannot be connected.
        named = {*problems, *(blamed for _, blamed in problems.values() if blamed is not None)}
        suspects = [self._guests[rank - first] for rank in sorted(named) if rank >= first]
        for guest in suspects if not silent else ():
            guest.suspected += 1
        at_fault = silent or {guest.rank for guest in suspects if guest.suspected > 1}
        why = next(
            (problems[rank][0] for rank in at_fault if rank in problems), next(iter(problems.values()))[0]
        )
        return _Outcome([], why, tuple(sorted(rank - first for rank in at_fault)), bool(suspects))
