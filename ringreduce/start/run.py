"""Starts rank processes on this host, for notebooks, tests and benchmarks."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from ringreduce import diagnosis
from ringreduce._engine import values
from ringreduce.annotations import Transport
from ringreduce.build.cuda_driver import has_initialized_driver
from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.descriptors import above_standard
from ringreduce.errors import Error, PeerLost, RankFailed
from ringreduce.start.agent import ending
from ringreduce.start.bootstrap import check, init
from ringreduce.start.orphans import end_with_parent

# Imported before the fork, so that the ranks need not import them.
from ringreduce.start.rendezvous import gathering, network_places  # noqa: F401

__all__ = ["run"]

LOOK_EVERY = 0.2  # seconds between two looks for ranks that have ended


@above_standard()
def run(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    timeout: float = DEFAULT_TIMEOUT,
    start: Literal["fork", "spawn"] = "fork",
    grace: float = 5.0,
    reproducible: bool | None = None,
    transport: Transport | None = None,
    max_blocks: int | None = None,
    priority: int | None = None,
) -> list[Any]:
    """Starts rank processes on this host, calls ``function(comm, *args)`` in each, and returns the results.

    The ranks never outlive the thread that calls this function: the kernel kills them when it ends.

    Args:
        function: the function that each rank calls. Its result must be picklable.
        ranks: the number of processes.
        args: further arguments of the function.
        timeout: the communicator's timeout in seconds.
        start: "fork" starts at once and takes any function. "spawn" starts new interpreters, and the function must be
            importable. In a forked rank torch uses one thread, because the parent's threads do not survive the fork.
            If this process has used CUDA, forked ranks could not use it, so only "spawn" is accepted.
        grace: the seconds that the other ranks have to end by themselves after one has failed.
        reproducible: as for :func:`ringreduce.init`.
        transport: as for :func:`ringreduce.init`.
        max_blocks: as for :func:`ringreduce.init`.
        priority: as for :func:`ringreduce.init`.

    Returns:
        A list of the function's results, by rank.

    Raises:
        Error: start is "fork", and this process has initialized the CUDA driver.
        RankFailed: a rank raised an exception (the cause of this one) or died. All ranks have ended.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}")
    if start not in ("fork", "spawn"):
        raise ValueError(f"start must be 'fork' or 'spawn', not {start!r}")
    values.whole(ranks, "ranks", 1)
    check(timeout, reproducible, transport, max_blocks=max_blocks, priority=priority)
    options = {
        "timeout": timeout,
        "reproducible": reproducible,
        "transport": transport,
        "max_blocks": max_blocks,
        "priority": priority,
    }
    grace = values.seconds(grace, "grace", True)
    if start == "fork" and has_initialized_driver():
        raise Error(
            "ringreduce.run cannot fork ranks: this process has initialized CUDA (through torch.cuda, CuPy or a "
            "collective on a GPU), which does not survive a fork. Pass start='spawn', or call run before anything uses "
            "CUDA. Even torch.cuda.is_available() uses it"
        )
    context: Any = multiprocessing.get_context(start)  # typeshed's common base class lacks Process
    name = f"run/{os.getpid()}/{secrets.token_hex(8)}"
    processes, pipes = [], {}
    try:
        for rank in range(ranks):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(os.getpid(), function, rank, ranks, args, name, options, sending),
                name=f"rank {rank}",
            )
            process.start()
            sending.close()
            processes.append(process)
            pipes[receiving] = rank
        return _collect(pipes, processes, grace)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _collect(pipes: dict[Connection, int], processes: list[Any], grace: float) -> list[Any]:
    results: list[Any] = [None] * len(processes)
    failures: dict[int, tuple[str, BaseException | None]] = {}
    open_pipes = {rank: pipe for pipe, rank in pipes.items()}
    deadline: float | None = None
    while open_pipes and (deadline is None or time.monotonic() < deadline):
        ready = wait(list(open_pipes.values()), LOOK_EVERY)
        for rank, pipe in list(open_pipes.items()):
            # A child of a dead rank may hold the pipe's other end open.
            if pipe not in ready and (processes[rank].exitcode is None or pipe.poll()):
                continue
            del open_pipes[rank]
            well, payload = _answer(pipe, processes[rank])
            if well:
                results[rank] = payload
            else:
                failures[rank] = payload
        if failures and deadline is None:
            deadline = time.monotonic() + grace
    if failures:
        raise _failure(failures)
    return results


def _answer(pipe: Connection, process: Any) -> tuple[bool, Any]:
    """Returns whether a rank succeeded, and its result or how it failed."""
    with contextlib.suppress(EOFError):
        if pipe.poll():
            answer: tuple[bool, Any] = pickle.loads(pipe.recv_bytes())
            return answer
    process.join()
    return False, (ending(process.exitcode).removeprefix("was "), None)


def _failure(failures: dict[int, tuple[str, BaseException | None]]) -> RankFailed:
    """Returns the error to raise. Ranks that only lost a peer come last: they failed because of another rank."""
    rank = min(failures, key=lambda r: (isinstance(failures[r][1], PeerLost), r))
    text, cause = failures[rank]
    error = RankFailed(f"rank {rank} failed: {text}", rank)
    error.__cause__ = cause
    return error


def _rank_main(
    parent: int,
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    args: tuple[Any, ...],
    name: str,
    options: dict[str, Any],
    pipe: Connection,
) -> None:
    end_with_parent(parent)
    if _is_forked():
        _leave_threads_behind()
    with contextlib.suppress(Exception):  # a test runner's replacement of stderr has no file descriptor
        faulthandler.enable()
    try:
        with init(rank, ranks, name, **options) as comm:
            answer: tuple[bool, Any] = (True, function(comm, *args))
            message = pickle.dumps(answer)
    except BaseException as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            message = pickle.dumps((False, (text, error)))
            pickle.loads(message)
        except Exception:
            message = pickle.dumps((False, (text, Error(repr(error)))))
    diagnosis.end()  # the parent ends a rank that has answered
    pipe.send_bytes(message)
    pipe.close()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if _is_forked():
        # A forked rank must not run the exit handlers of its parent.
        os._exit(0)


def _is_forked() -> bool:
    return isinstance(multiprocessing.current_process(), multiprocessing.get_context("fork").Process)


def _leave_threads_behind() -> None:
    """Makes torch use one thread: it does not notice that its parent's threads are gone after a fork."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
