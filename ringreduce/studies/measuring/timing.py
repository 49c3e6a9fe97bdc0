"""Times the algorithms of a cell. Every iteration begins at the same instant on all ranks, and warm-up is detected."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ringreduce.studies.bench.problem import Array
from ringreduce.studies.bench.protocol import Buffers, Case, Library
from ringreduce.studies.measuring.common_start import Start

__all__ = ["Figure", "WrongResult", "measure", "medians", "warmup"]

LEAST, MOST = 10, 500  # iterations
TURNS = 4
BATCH = 5
LATE, LATE_CROWDED = 5e-7, 3e-6  # seconds that a start may be late; the second if ranks share cores
LATE_PART = 0.02  # or this fraction of the median time


class WrongResult(ValueError):
    """An algorithm's result is wrong."""


@dataclass(frozen=True)
class Figure:
    """The measurement of one algorithm in one launch.

    Attributes:
        seconds: The times of the iterations that count, in the order in which they ran.
        warmup: The number of warm-up iterations before them.
        late: The number of iterations that were left out because a rank started too late.
    """

    seconds: Array
    warmup: int
    late: int

    def row(self) -> dict[str, int | float | str]:
        """Returns the columns of a study's row that hold times."""
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
    """Times the calls of each library for about ``seconds``, but at least ``least`` iterations.

    Every rank must call it, and gets the same figures. The libraries take turns of some iterations each, so that a
    temporary disturbance of the machine affects all of them. For a library that rejects its arguments, the result is
    the error instead of a figure, and for one with wrong results it is WrongResult.
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
            if warmup(kept) >= len(kept) // 2 and len(run.times.seconds) < MOST:  # warm-up may not have ended
                run.go_on(start, len(run.times.seconds))
    return [run.figure(allowed) if isinstance(run, _Run) else run for run in begun]


def medians(
    libraries: Sequence[Library], buffers: Buffers, start: Start, seconds: float, least: int
) -> list[float]:
    """Returns the median time of each library in seconds. Raises the error of a library that has no figure."""
    found = []
    for figure in measure(libraries, buffers, start, seconds, least):
        if isinstance(figure, Exception):
            raise figure
        found.append(float(np.median(figure.seconds)))
    return found


@dataclass
class _Run:
    """The calls of a library so far."""

    case: Case
    times: _Times
    wrong: int = 0

    def iterations_of(self, seconds: float) -> int:
        """Returns the iterations per turn that fill ``seconds`` in all, including rewriting the buffer and starting."""
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
        # All ranks reject the arguments that an algorithm does not support, before anything is sent.
        return error
    return _Run(case, times, case.wrong(1, least - 1))


@dataclass(frozen=True)
class _Times:
    """The times of iterations: the seconds from the common start to the last end, and how late the start was."""

    seconds: Array
    late: Array
    whole: float  # seconds that all iterations took together

    def then(self, other: _Times) -> _Times:
        seconds = np.concatenate([self.seconds, other.seconds])
        return _Times(seconds, np.concatenate([self.late, other.late]), self.whole + other.whole)

    def kept(self, allowed: float) -> Array:
        """Returns the seconds of the iterations that did not begin too late. At least half are kept."""
        middle = LATE_PART * float(np.median(self.seconds))
        return self.seconds[self.late <= max(allowed, middle, float(np.median(self.late)))]


def _iterations(case: Case, start: Start, first: int, count: int) -> _Times:
    library, read, turns = case.library, start.clock.read, case.buffers.turns
    needed, late, ended = mine = np.zeros((3, count))
    began = read()
    for ahead in range(min(turns - 1, count)):
        case.buffers.rewrite(1, first + ahead)
    for index in range(count):
        if index + turns <= count:
            case.buffers.rewrite(1, first + index + turns - 1)
        call = case.calls[(first + index) % turns]
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
    """Returns the number of warm-up iterations at the beginning, at most half of them.

    The method is MSER-5 (White, Cobb and Spratt 2000): it drops means of five iterations from the beginning until the
    squared standard error of the mean of the others is least. This implementation uses medians of five and logarithms,
    because single iterations may be arbitrarily slow at any time.
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
