"""Making the table behind ``algorithm="auto"``: measured where the model is unsure, trusted where it is not."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringreduce import _engine
from ringreduce.bench.ours import ours
from ringreduce.bench.protocol import Array, Buffers, Effort, Library, Problem, measure
from ringreduce.bench.results import machine_facts
from ringreduce.communicator import Communicator
from ringreduce.model.fitting import fit, on_cores_of_their_own
from ringreduce.model.model import Model, of_their_own

__all__ = ["COLLECTIVES", "Candidate", "Choices", "read_rows", "table", "tune", "write"]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
K, M = 1 << 10, 1 << 20
SIZES = (64, 512, 2 * K, *(K << n for n in range(3, 17)))  # up to 64 MiB
SLICES = tuple(K << n for n in range(5, 11))  # 32 KiB to 1 MiB
LANES = (1, 2, 4)
SLICED = 64 * K  # from here on, buffers are cut into slices
WORTH = 1.05  # another choice for the next size must be so much faster
CLOSE = (1.5, 1.2, 1.2)  # after each pass, those that take more times as long as the fastest are out
REST = (1 << 64) - 1  # the size up to which a table's last row fits


class Candidate(NamedTuple):
    """What "auto" may choose: an algorithm, bytes of a round's messages in one slice, and slices in flight."""

    algorithm: str
    slice_bytes: int
    lanes: int


Choices = dict[tuple[str, int], dict[int, Candidate]]
"""By collective and world: the choice for each size in bytes."""


def tune(
    comm: Communicator,
    model: Model | None = None,
    collectives: Sequence[str] = COLLECTIVES,
    sizes: Sequence[int] = SIZES,
    budget: float = 0.1,
    tell: Callable[[str], None] = lambda line: None,
) -> Choices:
    """Finds the fastest algorithm and slices for each collective, size and world up to this one's.

    What the model predicts to be slower by more than its own errors is left out. The others are measured in turn, and
    the median of several passes counts. Where only one is left, nothing is measured. Every rank must call it.

    Args:
        comm: ranks as programs will use them: the table is for their transport.
        model: of this machine; None: it is fitted first.
        sizes: bytes of the whole buffer.
        budget: seconds for each measurement.
        tell: gets a line for each size, on rank 0.

    Returns:
        The choices, the same on all ranks.
    """
    model = model or fit(comm)
    choices: Choices = {}
    worlds = [w for w in (2, 4, 8, 16, 32, 64) if w < comm.size] + [comm.size]
    for world in worlds if comm.size > 1 else []:
        group = comm.split(0 if comm.rank < world else None)
        if group is not None:
            with group, on_cores_of_their_own(group):
                for collective in collectives:
                    found = _by_size(
                        group, model, collective, sizes, budget, tell if comm.rank == 0 else lambda line: None
                    )
                    choices[collective, world] = found
        comm.barrier()
    return choices


def _by_size(
    comm: Communicator,
    model: Model,
    collective: str,
    sizes: Sequence[int],
    budget: float,
    tell: Callable[[str], None],
) -> dict[int, Candidate]:
    found: dict[int, Candidate] = {}
    previous: Candidate | None = None
    for size in sizes:
        if size % (4 * comm.size) and collective != "all_reduce":
            continue
        contenders = _promising(comm, model, collective, size, previous)
        times = _times(comm, collective, size, contenders, budget) if len(contenders) > 1 else {}
        if size >= SLICED:  # then how the best two are cut into slices
            best = sorted(times, key=times.__getitem__)[:2] or contenders
            cut = [
                Candidate(one.algorithm, b, n) for one in best for b in SLICES for n in LANES if n * b <= size
            ]
            times = _times(comm, collective, size, dict.fromkeys([*best, *cut]), budget / 2)
        choice = min(times, key=times.__getitem__) if times else contenders[0]
        if previous in times and times[previous] <= WORTH * times[choice]:
            choice = previous
        found[size] = previous = choice
        ranking = ", ".join(
            f"{one.algorithm} {1e6 * seconds:.3g} us"
            for one, seconds in sorted(times.items(), key=lambda t: t[1])[:3]
        )
        tell(f"{collective}, {comm.size} ranks, {size} B: {_text(choice)} ({ranking or 'as predicted'})")
    return found


def _promising(
    comm: Communicator, model: Model, collective: str, size: int, previous: Candidate | None
) -> list[Candidate]:
    """Those that may be the fastest, for all that the model knows: the fastest prediction first."""
    hosts = {len(ranks) for ranks in comm.hosts}
    name, slice_bytes, lanes, _ = _engine.choose(
        collective, size, comm.size, comm.transport, comm.size > (os.cpu_count() or 1)
    )
    names = of_their_own(collective)
    here = [Candidate(each, slice_bytes, lanes) for each in names]
    if len(hosts) == 1:
        predicted = {
            one: model.predict(one.algorithm, size, comm.size, collective, hosts.copy().pop()).seconds
            for one in here
        }
        here.sort(key=predicted.__getitem__)
        unsure = model.unsure(collective, hosts.pop() == comm.size)
        here = [one for one in here if predicted[one] <= (1 + unsure) * predicted[here[0]]]
    known = [Candidate(name, slice_bytes, lanes), *([previous] if previous else [])]
    return list(dict.fromkeys([*here, *known])) if len(here) > 1 else here


def _times(
    comm: Communicator, collective: str, size: int, candidates: Iterable[Candidate], budget: float
) -> dict[Candidate, float]:
    """Seconds of a call of those that come close, the median of several passes; the same on all ranks."""
    left = list(candidates)
    found = defaultdict[Candidate, list[float]](list)
    buffers = Buffers(ours(comm, "auto"), Problem(collective, size))
    effort = Effort(budget / len(CLOSE), warmup=3 if size < M else 1, least=3, check=False)
    for turn, close in enumerate(CLOSE):
        for one in [*left[turn:], *left[:turn]]:
            found[one].append(1e-6 * measure(_library(comm, one), buffers, effort)["median_us"])
        times = {one: float(np.median(found[one])) for one in left}
        left = [one for one in left if times[one] <= close * min(times.values())]
    return times


def _library(comm: Communicator, one: Candidate) -> Library:
    """A candidate's calls, with slices of its own."""
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
    """The rows of a tuning file: collective, transport, ranks at most, whether they outnumber cores, bytes at most,
    algorithm, bytes of a slice, slices in flight."""
    rows = []
    for (collective, world), by_size in sorted(choices.items()):
        crowded = int(world > (os.cpu_count() or 1))
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
    """The rows of a tuning file; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def write(path: Path, rows: Sequence[str], model: Model) -> None:
    """Puts rows into a tuning file. They replace those of the same collectives and transports."""
    replaced = {tuple(row.split()[:2]) for row in rows}
    kept = [row for row in read_rows(path) if tuple(row.split()[:2]) not in replaced]
    facts = machine_facts(0) | model.made
    named = ("date", "ringreduce", "cpu", "kernel", "exchange_ns", "ranks")
    heading = [f"# {key}: {facts[key]}" for key in named if key in facts]
    columns = "# collective, transport, ranks at most, more ranks than cores, bytes at most, algorithm, slice, lanes"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text("\n".join(["# Made by ringreduce tune.", *heading, columns, *kept, *rows]) + "\n")
    new.replace(path)
