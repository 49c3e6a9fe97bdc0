"""Timing the algorithms of a cell: every iteration begins at the same instant on all ranks, and warm-up is detected."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ringreduce.bench.problem import Array
from ringreduce.bench.protocol import Buffers, Case, Library
from ringreduce.study.clocks import Start

__all__ = ["Figure", "WrongResult", "measure", "medians", "warmup"]

LEAST, MOST = 10, 500  # iterations
TURNS = 4
BATCH = 5
LATE, LATE_CROWDED = 5e-7, 3e-6  # seconds that a start may be late; where ranks yield cores to each other
LATE_PART = 0.02  # or that part of the median time


class WrongResult(ValueError):
    """An algorithm's result is not the right one."""


@dataclass(frozen=True)
class Figure:
    """One algorithm in one launch. ``seconds``: of each iteration that counts, in the order in which they ran."""

    seconds: Array
    warmup: int
    late: int

    def row(self) -> dict[str, int | float | str]:
        """The columns of a study's row that say how long it took."""
        us = 1e6 * self.seconds
        low, middle, high = np.quantile(us, [0.25, 0.5, 0.75])
        reach = 3 * (high - low)
        outliers = us[(us < low - reach) | (us > high + reach)]
        times = {"time_us": middle, "q1_us": low, "q3_us": high, "min_us": us.min(), "max_us": us.max()}
        return {
            **{name: round(float(value), 4) for name, value in times.items()},
            "iterations": len(us), "warmup": self.warmup, "late": self.late,
            "outliers_us": " ".join(f"{value:.4g}" for value in outliers),
        }  # fmt: skip


def measure(
    libraries: Sequence[Library], buffers: Buffers, start: Start, seconds: float, least: int = LEAST
) -> list[Figure | Exception]:
    """Times each library's calls for about so many seconds, at least ``least`` of them.

    Every rank calls it, and gets the same figures. Libraries take turns of some iterations, so what disturbs the
    machine for a while disturbs all of them. In place of a figure there is the error of one that refuses its arguments,
    or WrongResult.
    """
    allowed = LATE_CROWDED if start.crowded else LATE
    with _without_garbage_collection():
        begun = [_begun(library, buffers, start, least) for library in libraries]
        runs = [run for run in begun if isinstance(run, _Run)]
        turns = [run.iterations_of(seconds) for run in runs]
        for turn in range(TURNS):
            for at in np.roll(np.arange(len(runs)), turn):
                runs[at].go_on(start, turns[at])
        for run in runs:
            kept = run.times.kept(allowed)
            if warmup(kept) >= len(kept) // 2 and len(run.times.seconds) < MOST:  # it may go on beyond that
                run.go_on(start, len(run.times.seconds))
    return [run.figure(allowed) if isinstance(run, _Run) else run for run in begun]


def medians(
    libraries: Sequence[Library], buffers: Buffers, start: Start, seconds: float, least: int
) -> list[float]:
    """The median of each library's figure, in seconds. Raises the error of one that has none."""
    found = []
    for figure in measure(libraries, buffers, start, seconds, least):
        if isinstance(figure, Exception):
            raise figure
        found.append(float(np.median(figure.seconds)))
    return found


@dataclass
class _Run:
    """A library's calls so far."""

    case: Case
    times: _Times
    wrong: int = 0

    def iterations_of(self, seconds: float) -> int:
        """How many in each turn fill so many seconds in all, with rewriting the buffer and agreeing on a start."""
        done = len(self.times.seconds)
        count = float(np.clip(done * seconds / self.times.whole, done, MOST))
        return math.ceil((count - done) / TURNS)

    def go_on(self, start: Start, count: int) -> None:
        if count:
            done = len(self.times.seconds)
            self.times = self.times.then(_iterations(self.case, start, done, count))
            self.wrong += self.case.wrong(1, done + count - 1)

    def figure(self, allowed: float) -> Figure | Exception:
        wrong = int(self.case.library.maximum(np.array([float(self.wrong)]))[0])
        if wrong:
            return WrongResult(f"{wrong} wrong elements")
        kept = self.times.kept(allowed)
        cut = warmup(kept)
        return Figure(kept[cut:], cut, len(self.times.seconds) - len(kept))


def _begun(library: Library, buffers: Buffers, start: Start, least: int) -> _Run | Exception:
    try:
        case = Case(library, buffers)
        times = _iterations(case, start, 0, least)
    except (ValueError, TypeError) as error:
        # Arguments that an algorithm does not take are refused by all ranks alike, before anything happens.
        return error
    return _Run(case, times, case.wrong(1, least - 1))


@dataclass(frozen=True)
class _Times:
    """Of iterations: the seconds from the common start to the last end, and how late the start was."""

    seconds: Array
    late: Array
    whole: float  # seconds that all iterations took

    def then(self, other: _Times) -> _Times:
        seconds = np.concatenate([self.seconds, other.seconds])
        return _Times(seconds, np.concatenate([self.late, other.late]), self.whole + other.whole)

    def kept(self, allowed: float) -> Array:
        """Without those that began too late; half of all are kept in any case."""
        middle = LATE_PART * float(np.median(self.seconds))
        return self.seconds[self.late <= max(allowed, middle, float(np.median(self.late)))]


def _iterations(case: Case, start: Start, first: int, count: int) -> _Times:
    library, read, call = case.library, start.clock.read, case.calls[0]
    needed, late, ended = mine = np.zeros((3, count))
    began = read()
    for index in range(count):
        case.buffers.rewrite(1, first + index)
        at, needed[index] = start.agree()
        late[index] = start.wait(at) - at
        call()
        ended[index] = read() - at
    whole = read() - began
    everyone = np.full((library.ranks, 3, count), -np.inf)
    everyone[library.rank] = mine
    everyone = library.maximum(everyone)
    start.learn(everyone[:, 0].max(axis=0))
    longest = float(library.maximum(np.array([whole]))[0])
    return _Times(everyone[:, 2].max(axis=0), start.lateness(everyone[:, 1]), longest)


def warmup(seconds: Array) -> int:
    """How many iterations at the beginning are warm-up, at most half of them.

    MSER-5 (White, Cobb and Spratt 2000): means of five are left out from the beginning until the squared standard error
    of the mean of the others is least. Here they are medians of five, of logarithms, since single iterations may take
    any time at any place.
    """
    batches = len(seconds) // BATCH
    if batches < 2:
        return 0
    middles = np.median(np.log(seconds[: batches * BATCH]).reshape(batches, BATCH), axis=1)
    errors = [middles[cut:].var() / (batches - cut) for cut in range(batches // 2 + 1)]
    return BATCH * int(np.argmin(errors))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
