"""Measures, on every rank, all problems with all contestants that run in these processes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringreduce import cores
from ringreduce.communicator import Communicator
from ringreduce.start.bootstrap import init
from ringreduce.studies.bench.facts import host_facts, interfaces
from ringreduce.studies.bench.ours import ROUNDING, floor, ours
from ringreduce.studies.bench.problem import Problem
from ringreduce.studies.bench.protocol import Buffers, Effort, Library, measure
from ringreduce.studies.bench.results import Row

Facts = dict[str, Any]
SHARED = "+shared"
REPRODUCIBLE = "reproducible"
"""The name of ``auto`` on a reproducible communicator of the same ranks."""


def without_transport(name: str) -> tuple[str, str | None]:
    """Splits "ring@tcp" into the algorithm and the transport, which is None if there is none."""
    plain, mark, transport = name.rpartition("@")
    return (plain, transport) if mark and ":" not in transport else (name, None)


def without_wire(name: str) -> tuple[str, str | None]:
    """Splits "ring+int8" into the algorithm and the wire format, which is None if there is none."""
    plain, mark, wire = name.rpartition("+")
    return (plain, wire) if mark and wire in ROUNDING else (name, None)


@dataclass(frozen=True)
class Task:
    """What the ranks measure. It is the same on all ranks.

    Attributes:
        problems: The problems.
        algorithms: The algorithms for each collective. In a name such as "ring+int8+shared@tcp", the wire format, the
            use of ringreduce.empty for the buffers, and the transport are all optional. "reproducible" is ``auto`` on
            a reproducible communicator.
        efforts: The effort for each problem.
        peers: The peers that run in the processes of the ranks: "gloo" and "mpi".
        shared: Whether ringreduce.empty allocates all buffers.
        asynchronous: Whether calls use the progress thread.
        floor: Whether to measure the floor.
        turn: How far to rotate the order of the contestants.
        bind: Whether to bind the ranks to the cores in turn, as the MPIs that are measured bind theirs.
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
        """Returns the number of figures that will be measured."""
        return sum(
            len(self.algorithms[problem.collective]) + len(self.peers) + bool(self.floor and problem.nbytes)
            for problem in self.problems
        )


def plain_name(name: str) -> str:
    """Returns the name of the algorithm alone, as communicators accept it."""
    return without_wire(without_transport(name)[0].removesuffix(SHARED))[0]


def measure_all(comm: Communicator, task: Task) -> tuple[list[Row], list[Facts]]:
    """Measures a task. Returns a row per problem and contestant, the same on all ranks, and the facts of each rank."""
    rows: list[Row] = []
    asked_for = {name for names in task.algorithms.values() for name in names}
    carriers = sorted({without_transport(name)[1] or "" for name in asked_for})
    twins = {transport: _twin(comm, transport=transport) for transport in filter(None, carriers)}
    used = dict.fromkeys(twins.get(each, comm).transport for each in carriers)
    # The interfaces are read before the peers open their own connections. A forked rank also holds its parent's.
    networks = interfaces() if set(used) != {"shm"} else []
    facts: Facts = {"transport": ", ".join(used), "interface": ", ".join(networks) or "none"}
    if REPRODUCIBLE in asked_for:
        twins[REPRODUCIBLE] = _twin(comm, reproducible=True)
    peers, leave = _join_peers(comm, task.peers)
    if task.bind:
        # The ranks are bound only now, so that threads that the peers have started may use every core.
        cores.bind(comm.rank)
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
    """Returns another communicator of the same ranks, which meet through the given one."""
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
        # The floor is that of the memory, so the dtype does not matter.
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
        # All ranks reject the arguments that a contestant does not support, before anything is sent. torch and mpi4py
        # raise NotImplementedError.
        row = {"library": library.name, "ranks": library.ranks, "problem": str(error).split(". ")[0]}
    return {**row, **named, "collective": problem.collective, "bytes": problem.nbytes}


def _join_peers(comm: Communicator, names: tuple[str, ...]) -> tuple[list[Library], Callable[[], None]]:
    """Returns the peers that run in these processes, and a function that leaves them."""
    libraries, leavers = [], []
    for name in names:
        library = ours(comm, "auto")
        if name == "gloo":
            from ringreduce.studies.bench import gloo

            leavers.append(_join_gloo(comm))
            libraries.append(replace(library, name="gloo", prepare=gloo.prepare))
        else:
            from ringreduce.studies.bench import mpi4py_collectives as mpi

            libraries.append(replace(library, name=mpi.vendor(), prepare=mpi.prepare))

    def leave() -> None:
        for each in leavers:
            each()

    return libraries, leave


def _join_gloo(comm: Communicator) -> Callable[[], None]:
    import torch.distributed as dist

    from ringreduce.studies.bench import gloo

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
    """Returns functions that advance and close a progress bar, which shows on a terminal if tqdm is installed."""
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
