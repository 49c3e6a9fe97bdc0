"""Makes the table behind ``algorithm="auto"``. Where the model's predictions are uncertain, it measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringreduce import _engine
from ringreduce.communicator import Communicator
from ringreduce.communicator.clocks import Clock
from ringreduce.studies.bench.ours import ours
from ringreduce.studies.bench.protocol import Array, Buffers, Library, Problem
from ringreduce.studies.bench.results import machine_facts
from ringreduce.studies.measuring.common_start import Start
from ringreduce.studies.measuring.timing import medians
from ringreduce.studies.model.fitting import LEAST, fit, on_cores_of_their_own
from ringreduce.studies.model.model import Model, of_their_own

__all__ = ["COLLECTIVES", "Candidate", "Choices", "read_rows", "table", "tune", "write"]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
K, M = 1 << 10, 1 << 20
SIZES = (64, 512, 2 * K, *(K << n for n in range(3, 17)))  # up to 64 MiB
SLICES = tuple(K << n for n in range(5, 11))  # 32 KiB to 1 MiB
LANES = (1, 2, 4)
SLICED = 64 * K  # from this size on, buffers are cut into slices
WORTH = 1.05  # a candidate must be this much faster than the usual one and the choice for the previous size
# After each pass, other candidates that are slower than the fastest by more than this factor drop out.
CLOSE = (1.5, 1.2, 1.2, 1.2, 1.2)
REST = (1 << 64) - 1  # the size limit of a table's last row


class Candidate(NamedTuple):
    """What "auto" may choose: an algorithm, the bytes of a round's messages in a slice, and the slices in flight."""

    algorithm: str
    slice_bytes: int
    lanes: int


Choices = dict[tuple[str, int], dict[int, Candidate]]
"""The choice for each size in bytes, by collective and world."""
Times = dict[Candidate, list[float]]
"""Seconds of a call in each pass."""


def tune(
    comm: Communicator,
    model: Model | None = None,
    collectives: Sequence[str] = COLLECTIVES,
    sizes: Sequence[int] = SIZES,
    budget: float = 0.05,
    tell: Callable[[str], None] = lambda line: None,
) -> Choices:
    """Finds the fastest algorithm and slices for each collective and size, in worlds up to that of ``comm``.

    Algorithms that the model predicts to be slower by more than its own errors are left out. The others are measured
    in turn, in several passes. The fastest median replaces the usual choice if that algorithm was faster in every pass
    and by more than 5 %, and if it is so again when the two alone are measured at the end. If only the usual choice is
    left, nothing is measured. Every rank must call it.

    Args:
        comm: Ranks as programs will use them. The table is for their transport.
        model: The model of this machine. None fits one first.
        collectives: The collectives to tune.
        sizes: Sizes of the whole buffer in bytes.
        budget: Seconds for each measurement.
        tell: Is called with a line of text for each size, on rank 0.

    Returns:
        The choices, the same on all ranks.
    """
    model = model or fit(comm)
    choices: Choices = {}
    worlds = [w for w in (2, 4, 8, 16, 32, 64) if w < comm.size] + [comm.size]
    for confirms in (False, True):
        for world in worlds if comm.size > 1 else []:
            group = comm.split(0 if comm.rank < world else None)
            if group is not None:
                with group, on_cores_of_their_own(group):
                    tuner = _Tuner(group, model, budget, tell if comm.rank == 0 else lambda line: None)
                    for collective in collectives:
                        key = collective, world
                        choices[key] = (
                            tuner.confirmed(collective, choices[key])
                            if confirms
                            else tuner.by_size(collective, sizes)
                        )
            comm.barrier()
    return choices


class _Tuner:
    """Tunes one world."""

    def __init__(self, comm: Communicator, model: Model, budget: float, tell: Callable[[str], None]) -> None:
        self._comm, self._model, self._budget, self._tell = comm, model, budget, tell
        self._start = Start(comm, Clock(comm))

    def by_size(self, collective: str, sizes: Sequence[int]) -> dict[int, Candidate]:
        found: dict[int, Candidate] = {}
        for size in sizes:
            if size % (4 * self._comm.size) == 0 or collective == "all_reduce":
                found[size] = self._choice(collective, size, next(reversed(found.values()), None))
        return found

    def confirmed(self, collective: str, found: dict[int, Candidate]) -> dict[int, Candidate]:
        """Measures the choices again, and returns to the usual ones where they do not win a second time.

        The fastest of many is often only the luckiest. Minutes have passed, so the machine may have changed its mode.
        """
        return {size: self._confirmed(collective, size, one) for size, one in found.items()}

    def _confirmed(self, collective: str, size: int, choice: Candidate) -> Candidate:
        usual = self._usual(collective, size)
        if choice == usual:
            return usual
        times = self._times(collective, size, [], [usual, choice])
        if _is_worth_it(times[choice], times[usual]):
            return choice
        said = f"back to {_text(usual)}; {_text(choice)} did not win again"
        self._tell(f"{collective}, {self._comm.size} ranks, {size} B: {said}")
        return usual

    def _choice(self, collective: str, size: int, previous: Candidate | None) -> Candidate:
        usual = self._usual(collective, size)
        kept = [one for one in (usual, previous) if one is not None]
        contenders = self._promising(collective, size, usual)
        times = self._times(collective, size, contenders, kept) if contenders != [usual] else {}
        if size >= SLICED:  # also measure how to cut the best two into slices
            best = _ranked(times)[:2] or contenders
            cut = [
                Candidate(one.algorithm, b, n) for one in best for b in SLICES for n in LANES if n * b <= size
            ]
            times = self._times(collective, size, [*best, *cut], kept)
        ranked = _ranked(times) or contenders
        near = (one for one in kept if one in times and not _is_worth_it(times[ranked[0]], times[one]))
        choice = next(near, ranked[0])
        said = ", ".join(
            f"{one.algorithm} {1e6 * np.median(times[one]):.3g} us" for one in ranked[:3] if times
        )
        self._tell(
            f"{collective}, {self._comm.size} ranks, {size} B: {_text(choice)} ({said or 'as predicted'})"
        )
        return choice

    def _usual(self, collective: str, size: int) -> Candidate:
        """Returns what "auto" chooses without a table."""
        crowded = self._comm.size > _engine.usable_cores()
        return Candidate(
            *_engine.choose(collective, size, self._comm.size, self._comm.transport, crowded)[:3]
        )

    def _promising(self, collective: str, size: int, usual: Candidate) -> list[Candidate]:
        """Returns the candidates that may be the fastest according to the model, the fastest prediction first."""
        comm, hosts = self._comm, {len(ranks) for ranks in self._comm.hosts}
        here = [usual._replace(algorithm=name) for name in of_their_own(collective)]
        if len(hosts) > 1:
            return here
        each = hosts.pop()
        predicted = {
            one: self._model.predict(one.algorithm, size, comm.size, collective, each).seconds for one in here
        }
        limit = (1 + self._model.unsure(collective, each == comm.size)) * min(predicted.values())
        return sorted((one for one in here if predicted[one] <= limit), key=predicted.__getitem__)

    def _times(
        self, collective: str, size: int, candidates: Iterable[Candidate], kept: Sequence[Candidate]
    ) -> Times:
        """Measures ``kept``, and the candidates that are close to the fastest.

        The results are the same on all ranks. Each pass allocates new memory, because the place of the memory causes
        some of the differences between launches.
        """
        left = list(dict.fromkeys([*kept, *candidates]))
        found = defaultdict[Candidate, list[float]](list)
        for close in CLOSE:
            group = self._comm.split(0)
            assert group is not None
            with group:
                buffers = Buffers(ours(group, "auto"), Problem(collective, size))
                libraries = [_library(group, one) for one in left]
                seconds = medians(libraries, buffers, self._start, self._budget / len(CLOSE), LEAST)
            for one, each in zip(left, seconds, strict=True):
                found[one].append(each)
            times = {one: np.median(found[one]) for one in left}
            left = [one for one in left if one in kept or times[one] <= close * min(times.values())]
        return {one: found[one] for one in left}


def _ranked(times: Times) -> list[Candidate]:
    return sorted(times, key=lambda one: np.median(times[one]))


def _is_worth_it(new: Sequence[float], old: Sequence[float]) -> bool:
    ratios = np.divide(old, new)
    return bool(np.median(ratios) > WORTH and np.min(ratios) > 1)


def _library(comm: Communicator, one: Candidate) -> Library:
    """Returns the library that runs a candidate, with its own slices."""
    library = ours(comm, one.algorithm)

    def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
        block = buffer.size // comm.size
        own = buffer[comm.rank * block :][:block]
        given = own if problem.collective == "all_gather" else buffer
        result = {"all_reduce": buffer, "all_gather": np.empty_like(buffer)}.get(
            problem.collective, np.empty_like(own)
        )
        handle = _engine.algorithm_handle(problem.collective, one.algorithm)
        call = partial(
            comm._c.collective, problem.collective, given, result, "sum", None, 0, handle, None, None, None, False,
            one.slice_bytes, one.lanes,
        )  # fmt: skip
        return call, result

    library.prepare = prepare
    return library


def _text(one: Candidate) -> str:
    return f"{one.algorithm} in slices of {one.slice_bytes // K} KiB, {one.lanes} in flight"


def table(choices: Choices, transport: str) -> list[str]:
    """Returns the rows of a tuning file.

    The columns are the collective, the transport, the most ranks, whether there are more ranks than cores, the most
    bytes, the algorithm, the bytes of a slice, and the slices in flight.
    """
    rows = []
    for (collective, world), by_size in sorted(choices.items()):
        crowded = int(world > _engine.usable_cores())
        sizes = sorted(by_size)
        for size, following in zip(sizes, [*sizes[1:], None], strict=True):
            one = by_size[size]
            if following is not None and by_size[following] == one:
                continue
            limit = REST if following is None else size
            rows.append(
                f"{collective} {transport} {world} {crowded} {limit} {one.algorithm} {one.slice_bytes} {one.lanes}"
            )
    return rows


def read_rows(path: Path) -> list[str]:
    """Reads the rows of a tuning file. Returns an empty list if there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def write(path: Path, rows: Sequence[str], model: Model) -> None:
    """Writes rows to a tuning file. They replace the rows for the same collectives and transports."""
    replaced = {tuple(row.split()[:2]) for row in rows}
    kept = [row for row in read_rows(path) if tuple(row.split()[:2]) not in replaced]
    facts = machine_facts(0) | model.made
    named = ("date", "ringreduce", "cpu", "kernel", "exchange_ns", "ranks")
    heading = [f"# {key}: {facts[key]}" for key in named if key in facts]
    columns = "# collective, transport, most ranks, more ranks than cores, most bytes, algorithm, slice bytes, lanes"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text("\n".join(["# Made by ringreduce tune.", *heading, columns, *kept, *rows]) + "\n")
    new.replace(path)
