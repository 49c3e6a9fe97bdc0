"""Runs one trial: starts its ranks, collects what they report, and looks for what they leave behind."""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ringreduce
from ringreduce.start.orphans import end_with_parent
from tests.faults.chaos.elastic import Elastic
from tests.faults.chaos.place import Place
from tests.faults.chaos.plan import STAYS, Trial
from tests.faults.chaos.rank import Belongings, Rank

PAUSE = 0.7  # seconds that a rank is stopped in a trial with newcomers
GRACE = 5.0  # seconds for a process to end that has said all it has to say


@dataclass
class Story:
    """What became of one rank."""

    events: dict[str, Any] = field(default_factory=dict)
    status: int | None = (
        None  # its process's exit status, a signal's number negative; None: it had to be killed
    )


@dataclass
class Outcome:
    """What became of a trial: of each rank, and of what was there before."""

    stories: list[Story]
    left: list[str]
    seconds: float


def run(trial: Trial, place: Place) -> Outcome:
    began = time.monotonic()
    start = _start_threads if trial.transport == "local" else _start_processes
    place.prepare(trial)
    pipes, processes = start(trial, place)
    stories = [Story() for _ in pipes]
    try:
        _collect(trial, place, pipes, stories, processes)
    finally:
        doomed = _stays(trial) if trial.transport != "local" else set()
        statuses = [_end(process, 0.0 if rank in doomed else GRACE) for rank, process in enumerate(processes)]
        place.restore()
    for rank, story in enumerate(stories):
        story.status = statuses[min(rank, len(statuses) - 1)]
    return Outcome(stories, place.leftovers(), time.monotonic() - began)


def _stays(trial: Trial) -> set[int]:
    return {fault.rank for fault in trial.faults if fault.how in STAYS}


def _collect(
    trial: Trial, place: Place, pipes: list[int], stories: list[Story], processes: list[int]
) -> None:
    """Reads what ranks report until all that can end have."""
    stays = _stays(trial)
    others = [story for rank, story in enumerate(stories) if rank not in stays]
    until = time.monotonic() + 2 * trial.patience + 20
    texts = [b""] * len(pipes)
    timers: list[threading.Timer] = []
    with selectors.DefaultSelector() as selector:
        for rank, pipe in enumerate(pipes):
            selector.register(pipe, selectors.EVENT_READ, rank)
        while any(key.data not in stays for key in selector.get_map().values()):
            ready = selector.select(max(until - time.monotonic(), 0))
            if not ready:
                break
            for key, _ in ready:
                rank = key.data
                more = os.read(key.fd, 1 << 16)
                if not more:
                    selector.unregister(key.fd)
                    continue
                *lines, texts[rank] = (texts[rank] + more).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    stories[rank].events |= event
                    if "ready" in event:
                        _cut(trial, place, rank, stories)
                    if "fault" in event and trial.newcomers:
                        timers.append(_end_stop(trial, rank, processes[rank]))
                    if trial.timeout is not None and all("again" in story.events for story in others):
                        _kill(processes, stays)
    for (
        timer
    ) in timers:  # whoever is still stopped is killed by its number later, which must still be its own
        timer.cancel()
    for pipe in pipes:
        os.close(pipe)


def _kill(processes: list[int], ranks: set[int]) -> None:
    """Of ranks that hang the others have heard; now these can go on without them."""
    for rank in ranks if len(processes) > 1 else ():
        os.kill(processes[rank], signal.SIGKILL)


def _end_stop(trial: Trial, rank: int, process: int) -> threading.Timer:
    """A rank that is stopped goes on after a while, or is killed."""
    fault = trial.fault_of(rank)
    assert fault is not None
    number = signal.SIGCONT if fault.how == "pause" else signal.SIGKILL
    timer = threading.Timer(PAUSE, os.kill, (process, number))
    if fault.how != "kill":
        timer.start()
    return timer


def _cut(trial: Trial, place: Place, rank: int, stories: list[Story]) -> None:
    fault = trial.fault_of(rank)
    assert fault is not None
    time.sleep(fault.delay)
    at = time.monotonic()
    place.cut(trial.hosts[rank], fault.how)
    for victim in trial.victims:
        stories[victim].events["fault"] = at


def _teller(pipe: int) -> Callable[..., None]:
    return lambda **event: os.write(pipe, json.dumps(event).encode() + b"\n") and None


def _start_processes(trial: Trial, place: Place) -> tuple[list[int], list[int]]:
    store = place.store(trial) or f"chaos/{os.getpid()}/{secrets.token_hex(8)}"
    pipes, processes = [], []
    for rank in range(trial.everyone):
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reading)
            _as_rank(trial, rank, place, store, _teller(writing))
        os.close(writing)
        pipes.append(reading)
        processes.append(process)
    return pipes, processes


def _as_rank(trial: Trial, rank: int, place: Place, store: str, tell: Callable[..., None]) -> None:
    """In the rank's own process, which ends here."""
    status = 1
    try:
        end_with_parent(os.getppid())
        faulthandler.register(signal.SIGUSR1)  # for a rank that hangs
        place.enter(trial, rank)
        os.environ["RINGREDUCE_HOST"] = f"chaos-{trial.hosts[rank]}"
        os.environ["RINGREDUCE_LINKS"] = "auto" if trial.measured else "off"

        def join() -> Any:
            return ringreduce.init(
                rank, trial.world, store, timeout=trial.patience, transport=trial.transport
            )

        one = Elastic(trial, rank, store, tell) if trial.newcomers else Rank(trial, rank, join, tell)
        before = Belongings()
        one.run()
        ringreduce.finalize()  # which lets go of the communicator that init() has made
        tell(left=before.left())
        status = 0
    except BaseException:
        tell(crashed=traceback.format_exc()[-400:])
    finally:
        sys.stderr.flush()
        os._exit(status)


def _start_threads(trial: Trial, place: Place) -> tuple[list[int], list[int]]:
    ends = [os.pipe() for _ in range(trial.world)]
    process = os.fork()
    if process == 0:
        for reading, _ in ends:
            os.close(reading)
        _as_threads(trial, [writing for _, writing in ends])
    for _, writing in ends:
        os.close(writing)
    return [reading for reading, _ in ends], [process]


def _as_threads(trial: Trial, pipes: list[int]) -> None:
    status = 1
    try:
        end_with_parent(os.getppid())
        faulthandler.register(signal.SIGUSR1)
        before = Belongings()
        threads = _run_threads(trial, pipes)
        for rank, thread in enumerate(threads):
            if rank not in _stays(trial):
                thread.join()
        if not _stays(trial):
            threads.clear()
            _teller(pipes[0])(left=before.left())
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _run_threads(trial: Trial, pipes: list[int]) -> list[threading.Thread]:
    comms = ringreduce.local_group(trial.world, timeout=trial.patience)
    threads = []
    for number, pipe in enumerate(pipes):
        rank = Rank(trial, number, _giver(comms, number), _teller(pipe))
        threads.append(threading.Thread(target=_as_thread, args=(rank, _teller(pipe)), daemon=True))
    for thread in threads:
        thread.start()
    return threads


def _giver(comms: list[Any], rank: int) -> Callable[[], Any]:
    def join() -> Any:
        comm, comms[rank] = comms[rank], None
        return comm

    return join


def _as_thread(rank: Rank, tell: Callable[..., None]) -> None:
    try:
        rank.run()
    except BaseException:
        tell(crashed=traceback.format_exc()[-400:])


def _end(process: int, grace: float) -> int | None:
    """Its exit status; None if it had to be killed."""
    until = time.monotonic() + grace
    found, status = os.waitpid(process, os.WNOHANG)
    while not found and time.monotonic() < until:
        time.sleep(0.001)
        found, status = os.waitpid(process, os.WNOHANG)
    if found:
        return os.waitstatus_to_exitcode(status)
    if grace > 0:
        os.kill(process, signal.SIGUSR1)
        time.sleep(0.2)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None
