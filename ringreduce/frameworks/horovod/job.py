"""The job that ``hvd.init`` joins: its ranks, its process sets, its timeline, and its end."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod import variables
from ringreduce.frameworks.horovod.driver import Driver
from ringreduce.frameworks.horovod.negotiation import JOIN, Negotiator
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.request import CallOperation
from ringreduce.frameworks.horovod.stalls import StallCheck
from ringreduce.frameworks.horovod.tensor_timeline import TensorTimeline
from ringreduce.start import bootstrap

__all__ = [
    "add_process_set", "barrier", "cross_rank", "cross_size", "init", "is_homogeneous", "is_initialized", "join",
    "local_rank", "local_size", "rank", "remove_process_set", "shutdown", "size", "start_timeline",
    "stop_timeline",
]  # fmt: skip


class Job:
    """What exists between ``hvd.init`` and ``hvd.shutdown``."""

    def __init__(self, comm: Communicator, settings: variables.Settings) -> None:
        self.comm, self.settings, self.process = comm, settings, os.getpid()
        self.rank, self.hosts, self.host = comm.rank, comm.hosts, comm.host
        self.sets: dict[int, ProcessSet] = {}
        self.timeline: TensorTimeline | None = None
        self._next_id = 0
        global_process_set.ranks = list(range(comm.size))
        watched = comm.split(0) if settings.stall_warning and comm.size > 1 else None
        self.register(global_process_set, comm)
        self.stalls = None if watched is None else StallCheck(watched, settings, self._negotiators)

    def _negotiators(self) -> dict[int, Negotiator]:
        found = {number: one._driver for number, one in list(self.sets.items())}
        return {number: driver.negotiator for number, driver in found.items() if driver is not None}

    def members(self, process_set: ProcessSet) -> Communicator | None:
        """Makes the communicator of a set's ranks. All ranks of the job call it; others than those get None."""
        if process_set.mpi_comm is not None:
            process_set.ranks = sorted(process_set.mpi_comm.allgather(self.rank))
        ranks = process_set.ranks
        if not ranks or not 0 <= ranks[0] <= ranks[-1] < self.comm.size:
            raise ValueError(f"ranks of a process set must be from 0 to {self.comm.size - 1}, not {ranks}")
        if any(one.ranks == ranks for one in self.sets.values()):
            raise ValueError(f"there is a process set of ranks {ranks} already")
        return self.comm.split(ranks[0] if self.rank in ranks else None)

    def register(self, process_set: ProcessSet, comm: Communicator | None) -> None:
        """Gives a set its number, and its communicator on the ranks that belong to it."""
        process_set.process_set_id = self._next_id
        self._next_id += 1
        process_set._rank = self.rank
        self.sets[process_set.process_set_id] = process_set
        if comm is not None:
            negotiator = Negotiator(comm, process_set.ranks, self.settings.cache_capacity)
            process_set._driver = Driver(negotiator, self.settings.cycle)
            if self.timeline is not None:
                self.timeline.attach(negotiator)

    def forget(self, process_set: ProcessSet) -> None:
        """Takes away what :meth:`register` gave."""
        assert process_set.process_set_id is not None
        del self.sets[process_set.process_set_id]
        process_set.process_set_id = None
        driver, process_set._driver = process_set._driver, None
        if driver is not None:
            driver.close()

    def close(self) -> None:
        if self.stalls is not None:
            self.stalls.close()
        for one in list(self.sets.values()):
            self.forget(one)
        self.stop_timeline()

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        self.stop_timeline()
        if self.rank == 0:
            self.timeline = TensorTimeline(path, mark_cycles)
            for negotiator in self._negotiators().values():
                self.timeline.attach(negotiator)

    def stop_timeline(self) -> None:
        timeline, self.timeline = self.timeline, None
        if timeline is not None:
            for negotiator in self._negotiators().values():
                negotiator.on_run = negotiator.on_cycle = None
            timeline.close()


_job: Job | None = None


def job() -> Job:
    """Returns the job. Raises ValueError before ``hvd.init`` and after ``hvd.shutdown``."""
    if _job is None:
        raise ValueError("call hvd.init() first")
    return _job


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins this process to its job. Does nothing if it has been called.

    Args:
        comm: None for all ranks that the launcher (``ringreduce run``, torchrun, mpirun or srun) has started; a list of
            some of their ranks, in their new order; an mpi4py communicator; or a :class:`ringreduce.Communicator`,
            which is not used further.
        process_sets: sets to register, the same on all ranks; or "dynamic", which allows ``hvd.add_process_set``, as
            HOROVOD_DYNAMIC_PROCESS_SETS=1 does.

    Raises:
        ValueError: this rank is not in the list; a process set is invalid; or a variable of the environment is.
        TimeoutError: not all ranks arrived in time.
    """
    global _job
    if _job is not None:
        return
    settings = variables.read()
    if isinstance(process_sets, str):
        if process_sets != "dynamic":
            raise ValueError(
                f"process_sets must be a list of process sets or 'dynamic', not {process_sets!r}"
            )
        settings, process_sets = settings._replace(dynamic_sets=True), None
    _job = Job(_group(comm), settings)
    try:
        for one in process_sets or ():
            _job.register(one, _job.members(one))
        if settings.timeline and settings.timeline != "DYNAMIC":
            _job.start_timeline(settings.timeline, settings.mark_cycles)
    except BaseException:
        shutdown()
        raise


def _group(comm: Any) -> Communicator:
    """Returns a communicator for the job's own use."""
    if isinstance(comm, Communicator):
        own = comm.split(0)
    elif isinstance(comm, Sequence):
        everybody = bootstrap.init()
        ranks = list(comm)
        here = everybody.rank in ranks
        own = everybody.split(0, ranks.index(everybody.rank)) if here else everybody.split(None)
        if own is None:
            raise ValueError(f"rank {everybody.rank} is not in the list of ranks {ranks}")
    else:
        own = bootstrap.init(store=comm)
    assert own is not None
    return own


@atexit.register
def shutdown() -> None:
    """Leaves the job. Operations that are not complete fail on all ranks that wait for this one."""
    global _job
    ending, _job = _job, None
    if ending is not None and ending.process == os.getpid():  # not in a forked process
        ending.close()


def is_initialized() -> bool:
    """Returns whether ``init`` has been called, and ``shutdown`` has not."""
    return _job is not None


def rank() -> int:
    """Returns the number of this process, from 0."""
    return job().rank


def size() -> int:
    """Returns the number of processes."""
    return job().comm.size


def local_rank() -> int:
    """Returns the number of this process among those of its host."""
    here = job()
    return here.hosts[here.host].index(here.rank)


def local_size() -> int:
    """Returns the number of processes on this host."""
    here = job()
    return len(here.hosts[here.host])


def cross_rank() -> int:
    """Returns the place of this host among those that have a process of this local rank."""
    own = local_rank()
    return sum(len(ranks) > own for ranks in job().hosts[: job().host])


def cross_size() -> int:
    """Returns the number of hosts that have a process of this local rank."""
    own = local_rank()
    return sum(len(ranks) > own for ranks in job().hosts)


def is_homogeneous() -> bool:
    """Returns whether all hosts have the same number of processes."""
    return len({len(ranks) for ranks in job().hosts}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins a timeline. Rank 0 writes the file; on other ranks the call does nothing."""
    job().start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline, and completes its file."""
    job().stop_timeline()


def run_on(process_set: ProcessSet, call: CallOperation, name: str | None = None) -> Any:
    """Runs a call of the communicator when all ranks of the set have submitted it. Returns its result."""
    return process_set.driver().submit_named(call, name, blocking=True).wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the process set have called it."""
    run_on(process_set, CallOperation("barrier"))


def join(device: int = -1) -> int:
    """Tells that this rank has no more data, and waits until all ranks have called it.

    Until then, this rank contributes zeros to the others' all-reduces. Other operations raise HorovodInternalError on
    the ranks that submit them.

    Args:
        device: ignored; zeros are in CPU memory.

    Returns:
        The rank that joined last.
    """
    joined = CallOperation(JOIN)
    last: int = global_process_set.driver().submit(JOIN, joined, blocking=True).wait()
    return last


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set. All ranks of the job call it, in the same order.

    Args:
        process_set: the set, or its ranks.

    Returns:
        The set, which can be used at once.

    Raises:
        ValueError: sets at run time were not allowed, a rank is out of range, or there is a set of these ranks already.
    """
    here = job()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _check_dynamic(here)
    if added.process_set_id is not None:
        raise ValueError(f"{added} is registered already")
    call = CallOperation("add_process_set", (("ranks", added.ranks),), lambda _: here.members(added))
    here.register(added, run_on(global_process_set, call))
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. All ranks of the job call it, in the same order.

    Returns:
        False if the set is not registered, or is the global one.

    Raises:
        ValueError: sets at run time were not allowed.
    """
    here = job()
    _check_dynamic(here)
    if process_set.process_set_id is None or process_set is global_process_set:
        return False
    run_on(global_process_set, CallOperation("remove_process_set", (("ranks", process_set.ranks),)))
    here.forget(process_set)
    return True


def _check_dynamic(here: Job) -> None:
    if not here.settings.dynamic_sets:
        raise ValueError(
            "process sets can only be added and removed at run time after hvd.init(process_sets='dynamic') or with "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1"
        )
