"""What every rank does: all problems, each by all contestants that run in these processes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringreduce.bench.facts import host_facts, interfaces
from ringreduce.bench.ours import ROUNDING, floor, ours
from ringreduce.bench.problem import Problem
from ringreduce.bench.protocol import Buffers, Effort, Library, measure
from ringreduce.bench.results import Row
from ringreduce.communicator import Communicator
from ringreduce.start.bootstrap import init

Facts = dict[str, Any]
SHARED = "+shared"
REPRODUCIBLE = "reproducible"
"""Stands for ``auto`` on a reproducible communicator of the same ranks."""


def without_transport(name: str) -> tuple[str, str | None]:
    """An algorithm's name, and the transport behind it."""
    plain, mark, transport = name.rpartition("@")
    return (plain, transport) if mark and ":" not in transport else (name, None)


def without_wire(name: str) -> tuple[str, str | None]:
    """An algorithm's name, and the wire format behind it."""
    plain, mark, wire = name.rpartition("+")
    return (plain, wire) if mark and wire in ROUNDING else (name, None)


@dataclass(frozen=True)
class Task:
    """The same on all ranks.

    Attributes:
        algorithms: by collective. One whose name ends in "+shared" has its buffers from ringreduce.empty, one
            with "+int8" (before that) or another wire format sends its messages in it, one with "@tcp" (at the
            end) or another transport travels by it; "reproducible" is ``auto`` on a reproducible communicator.
        peers: of "gloo" and "mpi", which run in the ranks' own processes.
        efforts: by problem.
        turn: how far to rotate the order of the contestants.
        bind: give each rank a core (the cores in turn), as an mpirun does and as the MPIs here are measured.
    """

    problems: tuple[Problem, ...]
    algorithms: dict[str, tuple[str, ...]]
    efforts: tuple[Effort, ...]
    peers: tuple[str, ...] = ()
    shared: bool = False
    asynchronous: bool = False
    floor: bool = True
    turn: int = 0
    bind: bool = False

    def cells(self) -> int:
        """How many figures will be taken."""
        return sum(
            len(self.algorithms[problem.collective]) + len(self.peers) + bool(self.floor and problem.nbytes)
            for problem in self.problems
        )


def plain_name(name: str) -> str:
    """An algorithm's name alone: as the communicator takes it."""
    return without_wire(without_transport(name)[0].removesuffix(SHARED))[0]


def measure_all(comm: Communicator, task: Task) -> tuple[list[Row], list[Facts]]:
    """A row per problem and contestant, the same on all ranks, and the facts of each rank."""
    rows: list[Row] = []
    asked_for = {name for names in task.algorithms.values() for name in names}
    carriers = sorted({without_transport(name)[1] or "" for name in asked_for})
    twins = {transport: _twin(comm, transport=transport) for transport in filter(None, carriers)}
    used = dict.fromkeys(twins.get(each, comm).transport for each in carriers)
    # Before the peers bring connections of their own.
    facts: Facts = {"transport": ", ".join(used), "interface": ", ".join(interfaces()) or "none"}
    if REPRODUCIBLE in asked_for:
        twins[REPRODUCIBLE] = _twin(comm, reproducible=True)
    peers, leave = _join_peers(comm, task.peers)
    if task.bind:
        # Only now: what the peers started for themselves may use every core.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    own_cores = sorted(os.sched_getaffinity(0))
    facts = {**facts, **host_facts(own_cores), "rank_cores": own_cores}
    advance, finish = _progress(task.cells() if comm.rank == 0 else 0)
    for index, problem in enumerate(task.problems):
        entries = [*_contestants(comm, twins, task, problem), *((peer, problem) for peer in peers)]
        shift = (index + task.turn) % len(entries)
        kept: dict[bool, Buffers] = {}
        for library, asked in [*entries[shift:], *entries[:shift]]:
            shared = task.shared or without_transport(library.name)[0].endswith(SHARED)
            found = kept[shared].posed_as(asked) if shared in kept else None
            if found is None:
                found = Buffers(ours(comm, "auto", shared), asked)
            buffers = kept[shared] = found
            rows.append(_measured(library, buffers, task.efforts[index], problem))
            advance(f"{problem.collective} {problem.nbytes} B {library.name}")
    finish()
    leave()
    everybody = comm.all_gather_object(facts)
    for twin in twins.values():
        twin.close()
    return rows, everybody


def _twin(comm: Communicator, **options: Any) -> Communicator:
    """The same ranks once more, who find each other through the communicator that they have."""
    return init(comm.rank, comm.size, comm.all_gather_object, timeout=comm.timeout, **options)


def _contestants(
    comm: Communicator, twins: dict[str, Communicator], task: Task, problem: Problem
) -> list[tuple[Library, Problem]]:
    entries = []
    for name in task.algorithms[problem.collective]:
        carried, transport = without_transport(name)
        shared = task.shared or carried.endswith(SHARED)
        plain, wire = without_wire(carried.removesuffix(SHARED))
        whose = comm if transport is None else twins[transport]
        if name == REPRODUCIBLE:
            plain, whose = "auto", twins[REPRODUCIBLE]
        library = ours(whose, plain, shared, task.asynchronous, wire)
        entries.append((replace(library, name=name), problem))
    if task.floor and problem.nbytes:
        # The floor is that of memory, whatever the bytes mean.
        nbytes = max(problem.nbytes // 4, 1) * 4
        entries.append(
            (floor(comm, task.shared), Problem("scale", nbytes, in_place=problem.in_place, root=problem.root))
        )
    return entries


def _measured(library: Library, buffers: Buffers, effort: Effort, problem: Problem) -> Row:
    named = {"dtype": problem.dtype, "op": problem.op, "in_place": problem.in_place, "root": problem.root}
    try:
        row = measure(library, buffers, effort)
    except (ValueError, TypeError, NotImplementedError) as error:
        # Arguments that a contestant does not take are refused by all ranks alike, before anything happened. torch and
        # mpi4py raise NotImplementedError.
        row = {"library": library.name, "ranks": library.ranks, "problem": str(error).split(". ")[0]}
    return {**row, **named, "collective": problem.collective, "bytes": problem.nbytes}


def _join_peers(comm: Communicator, names: tuple[str, ...]) -> tuple[list[Library], Callable[[], None]]:
    """The peers that live in these processes, and how to leave them."""
    libraries, leavers = [], []
    for name in names:
        library = ours(comm, "auto")
        if name == "gloo":
            from ringreduce.bench import gloo

            leavers.append(_join_gloo(comm))
            libraries.append(replace(library, name="gloo", prepare=gloo.prepare))
        else:
            from ringreduce.bench import mpi4py_collectives as mpi

            libraries.append(replace(library, name=mpi.vendor(), prepare=mpi.prepare))

    def leave() -> None:
        for each in leavers:
            each()

    return libraries, leave


def _join_gloo(comm: Communicator) -> Callable[[], None]:
    import torch.distributed as dist

    from ringreduce.bench import gloo

    folder = tempfile.mkdtemp() if comm.rank == 0 else ""
    name = np.zeros(256, dtype=np.uint8)
    text = np.frombuffer(folder.encode(), dtype=np.uint8)
    name[: text.size] = text
    comm.broadcast(name)
    folder = bytes(name).rstrip(b"\0").decode()
    gloo.join(comm.rank, comm.size, f"{folder}/store")

    def leave() -> None:
        dist.destroy_process_group()
        comm.barrier()
        shutil.rmtree(folder, ignore_errors=True)

    return leave


def _progress(total: int) -> tuple[Callable[[str], None], Callable[[], None]]:
    """A bar on a terminal, if tqdm is installed."""
    if not total or not sys.stderr.isatty():
        return lambda title: None, lambda: None
    try:
        from tqdm import tqdm
    except ImportError:
        return lambda title: None, lambda: None
    bar = tqdm(total=total, leave=False, unit="", bar_format="{l_bar}{bar}| {n}/{total} [{elapsed}]")

    def advance(title: str) -> None:
        bar.set_description(title)
        bar.update()

    return advance, bar.close
