"""One launch: its ranks measure everything, in a new random order each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ringreduce import cores
from ringreduce.communicator import Communicator
from ringreduce.communicator.clocks import Clock
from ringreduce.studies.bench.ours import ours
from ringreduce.studies.bench.protocol import Buffers
from ringreduce.studies.measuring.common_start import Start
from ringreduce.studies.measuring.timing import measure
from ringreduce.studies.study.plan import Cell, Competitor

__all__ = ["Found", "TrialBlock", "drawn", "measure_all"]

Row = dict[str, Any]


class TrialBlock(NamedTuple):
    """A cell and the algorithms that compete in it. They take turns in this order."""

    cell: Cell
    entries: list[Competitor]


@dataclass
class Found:
    """The results of a launch.

    Attributes:
        transport: The transport that was used. For "shm+tcp" it is "shm" if all ranks share a host.
        rows: The rows, without the columns that are the same for the whole launch.
        refused: What could not be measured, with its ``reason``.
        clock: How the clocks of the ranks are aligned.
        crowded: Whether ranks share cores.
        hosts: The number of hosts.
    """

    transport: str
    rows: list[Row] = field(default_factory=list)
    refused: list[Row] = field(default_factory=list)
    clock: str = ""
    crowded: bool = False
    hosts: int = 1


def drawn(competing: Mapping[Cell, Sequence[Competitor]], seed: Sequence[int]) -> list[TrialBlock]:
    """Returns the cells in random order, each with its algorithms in random order."""
    random = np.random.default_rng(list(seed))
    cells, order = list(competing), random.permutation(len(competing))
    return [
        TrialBlock(
            cells[at], [competing[cells[at]][n] for n in random.permutation(len(competing[cells[at]]))]
        )
        for at in order
    ]


def measure_all(comm: Communicator, blocks: Sequence[TrialBlock], seconds: float, bind: bool) -> Found:
    """Measures all blocks. Every rank must call it, and gets the same results.

    Args:
        comm: The ranks.
        blocks: What to measure, in this order.
        seconds: The time for each algorithm of each block.
        bind: Whether to bind the ranks to the cores in turn. Otherwise they stay where the launcher put them.
    """
    if bind:
        cores.bind(comm.rank)
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
