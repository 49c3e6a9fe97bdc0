"""Starting rank processes on this host: for notebooks, tests and benchmarks."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from ringreduce._engine import values
from ringreduce.annotations import Transport
from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.cuda.cuda_driver import has_initialized_driver
from ringreduce.errors import Error, PeerLost, RankFailed
from ringreduce.start.bootstrap import check, init
from ringreduce.start.orphans import end_with_parent

__all__ = ["run"]

LOOK_EVERY = 0.2  # seconds between two looks at which ranks have ended


def run(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    timeout: float = DEFAULT_TIMEOUT,
    start: Literal["fork", "spawn"] = "fork",
    grace: float = 5.0,
    reproducible: bool | None = None,
    transport: Transport | None = None,
) -> list[Any]:
    """Starts local rank processes, calls ``function(comm, *args)`` in each and returns the results by rank.

    Args:
        function: what each rank does; its result must be picklable.
        ranks: how many processes.
        timeout: the communicator's, in seconds.
        start: "fork" begins at once and takes any function; "spawn" starts fresh interpreters, and needs a
            function that can be imported. A forked rank's torch computes with one thread: it would wait for others that
            its parent has and it has not. No forked rank can use CUDA if this process has: then only "spawn" is taken.
        grace: seconds that the other ranks get to end by themselves after one has failed.
        reproducible: as for :func:`ringreduce.init`.
        transport: as for :func:`ringreduce.init`.

    Ranks never outlive the thread that has called this: they are killed with it.

    Raises:
        Error: ranks are to be forked, and this process has initialized CUDA's driver.
        RankFailed: a rank raised (the exception is the cause) or died. The others have ended by then.
    """
    if not callable(function):
        raise TypeError(f"function must be a function, not {type(function).__name__}")
    if start not in ("fork", "spawn"):
        raise ValueError(f"start must be 'fork' or 'spawn', not {start!r}")
    values.whole(ranks, "ranks", 1)
    check(timeout, reproducible, transport)
    grace = values.seconds(grace, "grace", True)
    if start == "fork" and has_initialized_driver():
        raise Error(
            "ringreduce.run cannot fork ranks: this process has initialized CUDA (by torch.cuda, CuPy or a collective "
            "on a GPU), which does not survive a fork. Pass start='spawn', or call run before anything uses CUDA: "
            "torch.cuda.is_available() does, too"
        )
    context: Any = multiprocessing.get_context(start)  # typeshed's common base lacks Process
    name = f"run/{os.getpid()}/{secrets.token_hex(8)}"
    processes, pipes = [], {}
    try:
        for rank in range(ranks):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(
                    os.getpid(),
                    function,
                    rank,
                    ranks,
                    args,
                    name,
                    timeout,
                    reproducible,
                    transport,
                    sending,
                ),
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
            # A process that a dead rank has forked may hold the pipe's other end open.
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
    """What a rank has sent: that it went well, and its result; or else how it failed."""
    with contextlib.suppress(EOFError):
        if pipe.poll():
            answer: tuple[bool, Any] = pickle.loads(pipe.recv_bytes())
            return answer
    process.join()
    return False, (_how_it_ended(process.exitcode), None)


def _failure(failures: dict[int, tuple[str, BaseException | None]]) -> RankFailed:
    """The first cause: ranks that only lost a peer fail because of another."""
    rank = min(failures, key=lambda r: (isinstance(failures[r][1], PeerLost), r))
    text, cause = failures[rank]
    error = RankFailed(f"rank {rank} failed: {text}", rank)
    error.__cause__ = cause
    return error


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exited with status {code}"


def _rank_main(
    parent: int, function: Callable[..., Any], rank: int, ranks: int, args: tuple[Any, ...], name: str,
    timeout: float, reproducible: bool | None, transport: Transport | None, pipe: Connection,
) -> None:  # fmt: skip
    end_with_parent(parent)
    if _is_forked():
        _leave_threads_behind()
    with contextlib.suppress(Exception):  # a test runner's replacement of stderr has no file descriptor
        faulthandler.enable()
    try:
        with init(rank, ranks, name, timeout=timeout, reproducible=reproducible, transport=transport) as comm:
            answer: tuple[bool, Any] = (True, function(comm, *args))
            message = pickle.dumps(answer)
    except BaseException as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            message = pickle.dumps((False, (text, error)))
            pickle.loads(message)
        except Exception:
            message = pickle.dumps((False, (text, Error(repr(error)))))
    pipe.send_bytes(message)
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if _is_forked():
        # What the parent registered to be done at its exit is not a forked rank's to do.
        os._exit(0)


def _is_forked() -> bool:
    return isinstance(multiprocessing.current_process(), multiprocessing.get_context("fork").Process)


def _leave_threads_behind() -> None:
    """Of a parent whose torch has started threads a fork has none, but does not know that."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
