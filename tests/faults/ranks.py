"""Rank processes that may die, and what became of each."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import multiprocessing
import os
import pickle
import secrets
import signal
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ringreduce
from tests.processes import LIMIT, Processes, within

_context = multiprocessing.get_context("fork")


class Boom(Exception):
    """What user code raises."""


class Outcome(NamedTuple):
    value: Any = None
    error: BaseException | None = None
    at: float = 0.0  # time.monotonic() of the end


class Board:
    """Times and counts that ranks leave for the test, in memory that survives them."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def note(self, rank: int, place: int = 0, value: float | None = None) -> None:
        """Writes a value, by default the time, into one of a rank's four places."""
        value = time.monotonic() if value is None else value
        struct.pack_into("d", self._memory, (rank * 4 + place) * 8, value)

    def read(self, rank: int, place: int = 0) -> float:
        return struct.unpack_from("d", self._memory, (rank * 4 + place) * 8)[0]


class Ranks(Processes):
    """Forked processes, each of which joins the group and calls ``function(comm, board, *args)``."""

    def __init__(self, function: Callable[..., Any], count: int, *args: Any, timeout: float = 60.0) -> None:
        self.board = Board()
        name = f"test/{secrets.token_hex(8)}"
        places = [(function, rank, count, name, self.board, args, timeout) for rank in range(count)]
        super().__init__(_context, _main, places)

    def wait_for(self, place: int = 0) -> None:
        """Waits until every rank has noted this place."""
        self.wait_until_all(lambda rank: self.board.read(rank, place) != 0)


def run(function: Callable[..., Any], count: int, *args: Any, timeout: float = 60.0) -> list[Any]:
    """The results of ranks that must all end well."""
    found = Ranks(function, count, *args, timeout=timeout).outcomes()
    for rank, outcome in enumerate(found):
        assert outcome is not None, f"rank {rank} died"
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in found]


def _main(function, rank, count, name, board, args, timeout, pipe) -> None:
    try:
        with ringreduce.init(rank, count, name, timeout=timeout) as comm:
            outcome = Outcome(function(comm, board, *args), None, time.monotonic())
    except BaseException as error:
        outcome = Outcome(None, error, time.monotonic())
    pipe.send_bytes(pickle.dumps(outcome))
    pipe.close()
    os._exit(0)


def die(how: str, board: Board, rank: int) -> None:
    """Ends this process, and notes when."""
    board.note(rank, 3)
    if how == "exception":
        raise Boom
    if how == "exit":
        os._exit(3)
    faulthandler.disable()  # an expected crash is no news
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV}[how])
    time.sleep(60)


def failure_of(call: Callable[[], Any]) -> tuple[BaseException, float]:
    """What a call raises, at the latest at one of its repetitions, and when."""
    until = time.monotonic() + LIMIT
    try:
        while time.monotonic() < until:
            call()
    except ringreduce.Error as error:
        return error, time.monotonic()
    raise AssertionError("nothing failed")


def assert_lost(found: list[Outcome | None], dead: dict[int, float]) -> None:
    """Every survivor raised, and returned with the time, a PeerLost that names a dead rank, soon enough."""
    for rank, outcome in enumerate(found):
        if rank in dead:
            continue
        assert outcome is not None, f"rank {rank} died too"
        if outcome.error is not None:
            raise outcome.error
        error, at = outcome.value[:2]
        assert isinstance(error, ringreduce.PeerLost), repr(error)
        assert error.rank in dead, f"rank {rank} blames {error.rank}: {error}"
        assert at - dead[error.rank] < within(), f"rank {rank} needed {at - dead[error.rank]:.2f} s"


@contextlib.contextmanager
def eventually(limit: float = 5.0):
    """Gives a predicate to wait with: ``with eventually() as wait: wait(lambda: ...)``."""

    def wait(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < until, "it never came true"
            time.sleep(0.005)

    yield wait
