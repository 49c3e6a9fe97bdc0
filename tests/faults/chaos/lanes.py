"""Several trials at a time: processes, each of which runs one trial after the other."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from tests.faults.chaos.place import Place
from tests.faults.chaos.plan import Trial

__all__ = ["over"]


def over(
    trials: Iterator[Trial], work: Callable[[Trial, Place], Any], lanes: int, until: float
) -> Iterator[tuple[Trial, Any]]:
    """Each trial with work(trial, place), as they end, of those begun before `until`."""
    started: list[tuple[Connection, int]] = []
    for _ in range(lanes):
        started.append(_start(work, started))
    busy: dict[Connection, Trial] = {}

    def hand_out(pipe: Connection) -> None:
        trial = next(trials, None) if time.monotonic() < until else None
        if trial is not None:
            pipe.send(trial)
            busy[pipe] = trial

    try:
        for pipe, _ in started:
            hand_out(pipe)
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                found, problem = pipe.recv()
                if problem:
                    raise RuntimeError(f"{busy[pipe]}: {problem}")
                yield busy.pop(pipe), found
                hand_out(pipe)
    finally:
        for pipe, _ in started:
            pipe.close()
        for _, process in started:
            if sys.exc_info()[0] is not None:
                os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)


def _start(
    work: Callable[[Trial, Place], Any], others: list[tuple[Connection, int]]
) -> tuple[Connection, int]:
    here, there = Pipe()
    process = os.fork()
    if process == 0:
        for pipe, _ in [*others, (here, 0)]:
            pipe.close()  # so that each ends, and tidies up, when this end of it is the last
        status = 1
        try:
            _serve(work, there)
            status = 0
        finally:
            os._exit(status)
    there.close()
    return here, process


def _serve(work: Callable[[Trial, Place], Any], pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    place = Place()
    try:
        while True:
            try:
                trial = pipe.recv()
            except EOFError:
                return
            try:
                answer: Any = work(trial, place), None
            except Exception:
                answer = None, traceback.format_exc()
            try:
                pipe.send(answer)
            except BrokenPipeError:
                return
    finally:
        place.close()
