"""What one rank of a trial does, and what it reports."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ringreduce
from tests.communicator.collectives.calls import buffers, expected, make_with
from tests.faults.chaos.faults import Boom, Tell, few_descriptors, refuse_threads, strike, struck_within
from tests.faults.chaos.plan import HARMLESS, Fault, Step, Trial

PATIENCE = 15.0  # seconds in which the fault must have come
LINGER = 0.4  # seconds that a rank stays after shrink() has failed: that it leaves is no answer to the others


class Prepared:
    """A step with its buffers, to be made any number of times."""

    def __init__(self, step: Step, rank: int, world: int) -> None:
        self.step, self.rank, self.world = step, rank, world
        if step.name == "exchange":
            self.given = np.full(step.call.count, rank, "float32")
            self.want = np.full(step.call.count, (rank - 1) % world, "float32")
            self.x, self.out = self.given.copy(), np.empty_like(self.given)
        elif step.name != "barrier":
            self.x, self.out = buffers(step.call, rank, world)
            self.given, self.want = self.x.copy(), expected(step.call, rank, world)

    def make(self, comm: Any, timeout: float | None = None) -> bool:
        """Makes the call; whether its result is right."""
        step = self.step
        if step.name == "barrier":
            work = comm.barrier(async_op=step.background, timeout=timeout)
            if work is not None:
                work.wait()
            return True
        if self.out is not None:
            self.out[:] = 99
        self.x[:] = self.given
        if step.name == "exchange":
            work = comm.recv(self.out, (self.rank - 1) % self.world, async_op=True, timeout=timeout)
            comm.send(self.x, (self.rank + 1) % self.world, timeout=timeout)
            result = work.wait()
        else:
            result = make_with(comm, step.call, self.x, self.out, async_op=step.background, timeout=timeout)
            if step.background:
                result = result.wait()
        return result is None if self.want is None else np.array_equal(result, self.want)


class Rank:
    """One rank of a trial. `join` makes its communicator."""

    def __init__(self, trial: Trial, rank: int, join: Callable[[], Any], tell: Tell) -> None:
        self.trial, self.rank, self.join, self._tell = trial, rank, join, tell
        self.struck = False
        self.calls = 0  # that have begun
        self.fault = trial.fault_of(rank)
        self.steps = [Prepared(step, rank, trial.world) for step in trial.steps]

    def tell(self, **event: Any) -> None:
        self.struck = self.struck or "fault" in event
        self._tell(**event)

    def run(self) -> None:
        """To the end of the trial, or this rank's."""
        try:
            comm = self._init()
            if comm is None:
                return
            self.tell(joined=time.monotonic())
            if self.fault is not None and self.fault.how == "exit":
                self._play(comm)  # and nobody closes it but the end of the process
                comm.close()
            elif self.fault is not None and self.fault.how == "daemon":
                self._end_beside_a_daemon(comm, self.fault)
            else:
                with comm:
                    self._play(comm)
        except SystemExit:
            atexit._run_exitfuncs()  # as when an interpreter ends, which a fork's does not
        except Boom:
            pass
        finally:
            if self.fault is not None and self.fault.how == "signals":
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _end_beside_a_daemon(self, comm: Any, fault: Fault) -> None:
        """Ends the process while another thread makes calls."""
        threading.Thread(target=self._play, args=(comm,), daemon=True).start()
        while self.calls <= fault.calls:
            time.sleep(1e-4)
        time.sleep(fault.delay)
        strike("daemon", self._tell)

    def _due(self, moment: str) -> Fault | None:
        return self.fault if self.fault is not None and self.fault.moment == moment else None

    def _init(self) -> Any:
        fault = self._due("init")
        if fault is not None and fault.how == "never":
            strike("never", self.tell)
        if fault is not None and fault.how == "late":
            time.sleep(fault.delay)
        began = time.monotonic()
        try:
            if fault is None or fault.how == "late":
                return self.join()
            if fault.how == "descriptors":
                return self._init_with_few_descriptors(fault)
            with struck_within(fault.how, fault.delay, self.tell):
                comm = self.join()
                time.sleep(fault.delay + 1)  # it was quicker than the fault
                return comm
        except ringreduce.Error as error:
            self._tell_error("init", error, began)
            return None

    def _init_with_few_descriptors(self, fault: Fault) -> None:
        """Leaves at once if there are enough."""
        try:
            with few_descriptors(int(fault.delay * 1000)), self.join():
                pass
        except OSError:
            pass
        finally:
            self.tell(fault=time.monotonic())

    def _tell_error(self, what: str, error: ringreduce.Error, began: float, **more: Any) -> None:
        found = {
            "type": type(error).__name__,
            "rank": getattr(error, "rank", None),
            "text": str(error)[:600],
            "began": began,
            "at": time.monotonic(),
        }
        self.tell(**{what: found | more})

    def _play(self, comm: Any) -> None:
        if not self._call_until_error(comm):
            return
        try:
            comm.all_reduce(np.ones(1, "float32"), timeout=self.trial.timeout)
            self.tell(again={"type": "nothing", "rank": None})
        except ringreduce.Error as error:
            self._tell_error("again", error, time.monotonic())
        if self.fault is None or self.fault.how not in ("close",):
            self._shrink(comm)

    def _call_until_error(self, comm: Any) -> bool:
        """Whether there was one."""
        until = time.monotonic() + PATIENCE
        well = self.trial.kind in HARMLESS and self.trial.moment != "shrink"
        number = 0
        while time.monotonic() < until:
            if well and number >= self.trial.rounds * len(self.steps) + self.trial.faults[0].calls:
                break
            step = self.steps[number % len(self.steps)]
            began = time.monotonic()
            try:
                right = self._call(comm, number, step)
            except ringreduce.Error as error:
                self._tell_error("error", error, began, call=step.step.name, number=number)
                self._strike_after_all(comm)
                return True
            if not right:
                self.tell(wrong=f"call {number}: {step.step}")
                return False
            number += 1
        self.tell(finished=number)
        return False

    def _strike_after_all(self, comm: Any) -> None:
        """Of two ranks that fail at once, one may have heard of the other before its own time came."""
        if self.trial.kind == "two" and self.fault is not None and not self.struck:
            strike(self.fault.how, self.tell, comm)

    def _call(self, comm: Any, number: int, step: Prepared) -> bool:
        fault = self.fault
        self.calls = number + 1
        if (
            fault is None
            or fault.moment in ("shrink", "init")
            or number != fault.calls
            or fault.how == "daemon"
        ):
            return step.make(comm, self.trial.timeout)
        if self.trial.kind == "cut":  # by whoever runs the trial
            self.tell(ready=time.monotonic())
            return step.make(comm, self.trial.timeout)
        if fault.how in ("late", "too late"):
            self.tell(fault=time.monotonic())
            time.sleep(fault.delay)
            return step.make(comm, self.trial.timeout)
        if fault.how == "threads":
            self._call_without_threads(comm, step)
        if fault.how == "mismatch":
            self.tell(fault=time.monotonic())
            if step.step.name == "all_reduce":
                comm.broadcast(np.ones(3, "int64"))
            else:
                comm.all_reduce(np.ones(3, "int64"))
            return True
        if fault.moment != "during":
            strike(fault.how, self.tell, comm)
            return step.make(comm, self.trial.timeout)  # closed
        with struck_within(fault.how, fault.delay, self.tell, comm):
            for more in range(10**9):
                if not self.steps[(number + more) % len(self.steps)].make(comm, self.trial.timeout):
                    return False
        return True

    def _call_without_threads(self, comm: Any, step: Prepared) -> None:
        """An asynchronous call that cannot begin must raise. The rank then leaves."""
        refuse_threads()
        with contextlib.suppress(ringreduce.Error):
            step.make(comm, self.trial.timeout)
        self.tell(fault=time.monotonic())
        raise Boom

    def _shrink(self, comm: Any) -> None:
        fault, began = self._due("shrink"), time.monotonic()
        try:
            if fault is None:
                fewer = comm.shrink()
            elif fault.how in ("never", "late"):
                self.tell(fault=began)
                time.sleep(fault.delay if fault.how == "late" else 3600)
                fewer = comm.shrink()
            else:
                with struck_within(fault.how, fault.delay, self.tell):
                    fewer = comm.shrink()
                    time.sleep(3600)  # it was quicker than the fault
        except ringreduce.Error as error:
            self._tell_error("shrink", error, began)
            time.sleep(LINGER)
            return
        with fewer:
            self._work_on(fewer)

    def _work_on(self, fewer: Any) -> None:
        """Whether what shrink() has given works, and who is in it."""
        began = time.monotonic()
        try:
            members = fewer.all_gather(np.array([self.rank])).tolist()
            for step in self.trial.steps[-3:]:
                moved = replace(step, call=replace(step.call, root=step.call.root % fewer.size))
                if not Prepared(moved, fewer.rank, fewer.size).make(fewer):
                    self.tell(wrong=f"after shrink(): {moved}")
            fewer.barrier()
            self.tell(members=members)
        except ringreduce.Error as error:
            self._tell_error("after", error, began, size=fewer.size)
            time.sleep(LINGER)


FILE_OF_BLOCKS = 64 << 20  # bytes, at least


class Belongings:
    """What this process holds: file descriptors, files in its memory and threads."""

    def __init__(self) -> None:
        ringreduce.empty(1)  # makes what a process has one of for all its arrays
        self.fds = {int(name) for name in os.listdir("/proc/self/fd")}
        maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        self.files = {line[4] for line in maps if line[-1].startswith(("/memfd:", "/dev/shm"))}
        self.threads = len(os.listdir("/proc/self/task"))

    def left(self) -> list[str]:
        """What has been added since, in words."""
        gc.collect()
        until = time.monotonic() + 2.0
        while True:
            now = Belongings()
            more = sorted(filter(_is_open, now.fds - self.fds))
            # Blocks that were communicated and freed are kept for later ones, in one file.
            kept = next((number for number in more if os.fstat(number).st_size >= FILE_OF_BLOCKS), None)
            found = [_fd(number) for number in more if number != kept]
            ignored = set() if kept is None else {str(os.fstat(kept).st_ino)}
            if files := now.files - self.files - ignored:
                found.append(f"{len(files)} files in memory")
            if now.threads > self.threads:
                found.append(f"{now.threads - self.threads} threads")
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.01)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False  # of the listing itself
    return True


def _fd(number: int) -> str:
    with contextlib.suppress(OSError):
        name = os.readlink(f"/proc/self/fd/{number}")
        inode = name.removeprefix("socket:[").rstrip("]")
        for family in ("tcp", "tcp6", "unix"):
            for line in Path(f"/proc/net/{family}").read_text().splitlines():
                if inode in line.split():
                    return f"fd {name}, {family}: {line.strip()}"
        return f"fd {name}"
    return f"fd {number}"
