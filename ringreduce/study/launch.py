"""One launch: all that its ranks measure, in an order that is drawn anew each time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ringreduce.bench.ours import ours
from ringreduce.bench.protocol import Buffers
from ringreduce.communicator import Communicator
from ringreduce.study.clocks import Clock, Start
from ringreduce.study.plan import Cell, Entry
from ringreduce.study.timing import measure

__all__ = ["Block", "Found", "drawn", "measure_all"]

Row = dict[str, Any]


class Block(NamedTuple):
    """A cell, and the algorithms that compete there: they take turns in this order."""

    cell: Cell
    entries: list[Entry]


@dataclass
class Found:
    """What a launch has found: columns of rows, and what could not be measured, with its ``reason``.

    Attributes:
        transport: what came of the one asked for: of "shm+tcp", "shm" where all ranks share a host.
        clock: how ranks know what time it is on the others.
        crowded: whether ranks share cores.
        hosts: how many there are.
    """

    transport: str
    rows: list[Row] = field(default_factory=list)
    refused: list[Row] = field(default_factory=list)
    clock: str = ""
    crowded: bool = False
    hosts: int = 1


def drawn(competing: Mapping[Cell, Sequence[Entry]], seed: Sequence[int]) -> list[Block]:
    """The cells in random order, and in each the algorithms in random order."""
    random = np.random.default_rng(list(seed))
    cells, order = list(competing), random.permutation(len(competing))
    return [
        Block(cells[at], [competing[cells[at]][n] for n in random.permutation(len(competing[cells[at]]))])
        for at in order
    ]


def measure_all(comm: Communicator, blocks: Sequence[Block], seconds: float, bind: bool) -> Found:
    """Every rank calls it, and gets the same.

    Args:
        seconds: for each algorithm of each block.
        bind: give each rank a core, the cores in turn; otherwise ranks are where a launcher has put them.
    """
    if bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    clock = Clock(comm)
    start = Start(comm, clock)
    found = Found(comm.transport, clock=clock.how(), crowded=start.crowded, hosts=len(comm.hosts))
    for number, (cell, entries) in enumerate(blocks):
        clock.synchronise()
        buffers = Buffers(ours(comm, "auto"), cell.problem())
        libraries = [ours(comm, entry.name, wire=cell.wire or None) for entry in entries]
        figures = measure(libraries, buffers, start, seconds)
        for entry, figure in zip(entries, figures, strict=True):
            order = len(found.rows) + len(found.refused)
            named = {**cell._asdict(), "algorithm": str(entry), "block": number, "order": order}
            if isinstance(figure, Exception):
                found.refused.append({**named, "reason": str(figure).split(". ")[0]})
            else:
                found.rows.append({**named, **figure.row()})
    return found
