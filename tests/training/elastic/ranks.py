"""Members of a group and newcomers, as processes that may die, and what became of each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ringreduce
from tests.faults.ranks import Board, Outcome
from tests.processes import LIMIT, Processes

_context = multiprocessing.get_context("fork")


class Me(NamedTuple):
    """What a process of a test knows: its number, the name of the job, and the board that all processes share."""

    number: int
    members: int
    name: str
    board: Board
    timeout: float

    def init(self, **options: Any) -> ringreduce.Communicator:
        return ringreduce.init(self.number, self.members, self.name, **{"timeout": self.timeout, **options})

    def join(self, **options: Any) -> ringreduce.Communicator:
        return ringreduce.join(self.name, **{"timeout": self.timeout, **options})

    def note(self, place: int = 0) -> None:
        self.board.note(self.number, place)

    def wait_for(self, number: int, place: int = 0) -> None:
        """Waits until a process has noted a place."""
        until = time.monotonic() + LIMIT
        while not self.board.read(number, place):
            assert time.monotonic() < until, f"process {number} never came so far"
            time.sleep(0.001)


class Job(Processes):
    """Forked processes: ``member(me)`` in the first ones, and ``newcomer(me)`` in the others."""

    def __init__(
        self,
        member: Callable[[Me], Any],
        members: int,
        newcomer: Callable[[Me], Any] | None = None,
        newcomers: int = 0,
        *,
        name: str = "",
        timeout: float = 60.0,
    ) -> None:
        self.board = Board()
        name = name or f"test/{secrets.token_hex(8)}"
        everyone = [member] * members + [newcomer] * newcomers
        places = [
            (function, Me(number, members, name, self.board, timeout))
            for number, function in enumerate(everyone)
        ]
        super().__init__(_context, _main, places)

    def values(self, but: tuple[int, ...] = ()) -> list[Any]:
        """Returns what all processes have returned but those that have died, or raises what one has raised."""
        found = self.outcomes()
        for number, outcome in enumerate(found):
            if number in but:
                continue
            assert outcome is not None, f"process {number} died"
            if outcome.error is not None:
                raise outcome.error
        return [outcome and outcome.value for outcome in found]


def _main(function: Callable[[Me], Any], me: Me, pipe: Any) -> None:
    try:
        outcome = Outcome(function(me), None, time.monotonic())
    except BaseException as error:
        outcome = Outcome(None, error, time.monotonic())
    pipe.send_bytes(pickle.dumps(outcome))
    pipe.close()
    os._exit(0)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def await_newcomers(comm: ringreduce.Communicator, number: int, **options: Any) -> None:
    """Waits until so many newcomers are at the door, in steps that all ranks make together."""
    until = time.monotonic() + LIMIT
    while (found := comm.pending(**options)) != number:
        assert time.monotonic() < until, f"{found} newcomers, not {number}"


def await_together(comm: ringreduce.Communicator, me: Me, number: int) -> None:
    """Waits until a process has noted something. Nobody is let in meanwhile, or counted."""
    while not comm.broadcast_object(me.board.read(number)):
        assert comm.pending() == 0


def described(comm: ringreduce.Communicator) -> tuple[int, int, float]:
    """Returns the rank, the size, and a sum that shows that the group works."""
    total = comm.all_reduce(np.array([1.0, comm.rank]))
    assert total[1] == comm.size * (comm.size - 1) / 2
    return comm.rank, comm.size, float(total[0])


def grown_by(comm: ringreduce.Communicator, newcomers: int) -> tuple[int, int, float]:
    """Waits for newcomers, lets them in, and returns what :func:`described` does of the larger group."""
    await_newcomers(comm, newcomers)
    with comm.grow() as grown:
        return described(grown)


def go_on_until(comm: ringreduce.Communicator, size: int, doomed: int = -1) -> tuple[int, int, float]:
    """Shrinks and grows, as an elastic program would, until the group has so many ranks and works.

    Whoever is lost must be the doomed rank of this communicator, or a newcomer of one that was lost before it began.
    """
    while True:
        try:
            if comm.size == size and doomed == -1:
                found = described(comm)
                comm.barrier()
                comm.close()
                return found
            if comm.pending():
                before, comm = comm, comm.grow()
                before.close()
        except ringreduce.PeerLost as error:
            assert doomed in (-1, error.rank), f"{comm} has lost {error.rank}, not {doomed}: {error}"
            before, comm = comm, comm.shrink()
            before.close()
            doomed = -1


def dies_at(owner: Any, name: str, number: int) -> None:
    """Kills this process when a function is called for the number-th time."""
    function, calls = getattr(owner, name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            kill_self()
        return function(*args, **kwargs)

    setattr(owner, name, counted)
