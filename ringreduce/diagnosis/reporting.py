"""Reports of a rank: at its end, on a signal, on request, and as metrics."""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ringreduce import _engine, log
from ringreduce.communicator.statistics import of_process
from ringreduce.descriptors import above_standard
from ringreduce.diagnosis import METRICS, METRICS_FILE, REPORT, stacks
from ringreduce.diagnosis.ranks import look_at
from ringreduce.diagnosis.verdict import in_full

__all__ = ["begin", "finish", "report", "start"]

KINDS = ("exit", "signal", "answer")
WRITE_EVERY = 10.0  # seconds between two versions of the file of metrics
LOCAL = "127.0.0.1"

_lock = threading.Lock()
_reporter: _Reporter | None = None
_started: set[str] = set()
_at_end: list[Callable[[], None]] = []


def begin(rank: int) -> None:
    """Starts what the environment asks for. Does nothing the second time."""
    wanted = os.environ.get(REPORT, "")
    kinds = [kind for kind in wanted.split(",") if kind]
    start(
        rank,
        report=kinds,
        metrics=os.environ.get(METRICS) or None,
        metrics_file=os.environ.get(METRICS_FILE) or None,
    )


@above_standard()
def start(
    rank: int,
    *,
    report: Iterable[str] = (),
    metrics: str | int | None = None,
    metrics_file: str | os.PathLike[str] | None = None,
) -> None:
    """Starts reports and metrics of this process. Reports that were started before stay as they are.

    Args:
        rank: this process's number in the job.
        report: which reports to make. "exit": the statistics, to standard error, when Python ends. "signal": the same,
            what the rank is doing and its Python stacks, on SIGUSR1, even while it is blocked in a collective. A
            handler that was installed before is called, too. "answer": the Python stacks, to ``ringreduce diagnose``
            of the same user. Or the same names in one string, separated by commas.
        metrics: "port" or "address:port", where metrics in OpenMetrics's format are served by HTTP. The rank is added
            to the port. Without an address, only this host can connect. Requires ``pip install ringreduce[metrics]``.
        metrics_file: a file for metrics, which is replaced every 10 seconds and at the end. "{rank}" stands for the
            rank. If the name ends in ".prom", the format is the older one of Prometheus, which node_exporter's textfile
            collector reads, and otherwise OpenMetrics's.

    Raises:
        ValueError: an argument is invalid.
        ImportError: prometheus_client is missing or too old.
    """
    if not isinstance(report, Iterable):
        raise TypeError(f"{REPORT} (report) must name {', '.join(KINDS)}, not {type(report).__name__}")
    if not isinstance(metrics_file, str | os.PathLike | None):
        kind = type(metrics_file).__name__
        raise TypeError(f"{METRICS_FILE} (metrics_file) must be a string or a path, not {kind}")
    kinds = [kind for kind in report.split(",") if kind] if isinstance(report, str) else list(report)
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{REPORT} (report) must name {', '.join(KINDS)}, not {kind!r}")
    from_port = None if metrics is None else _address(metrics)
    path = None if metrics_file is None else Path(str(metrics_file).replace("{rank}", str(rank)))
    write = None
    if path is not None or from_port is not None:
        from ringreduce.diagnosis import metrics as exposition

        if from_port is not None and METRICS not in _started:
            _once(METRICS, lambda: _serve(exposition, rank, *from_port))
        if path is not None:
            _try(exposition, rank, path)
            write = _writer(exposition, rank, path)
    if "exit" in kinds:
        _once("exit", lambda: _at_end.append(lambda: _print_statistics(rank)))
    if write is not None or {"signal", "answer"} & set(kinds):
        _report(rank, kinds, write)


def _once(what: str, act: Callable[[], object]) -> None:
    with _lock:
        if what in _started:
            return
        _started.add(what)
    act()


def _address(value: str | int) -> tuple[str, int]:
    host, _, port = str(value).rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{METRICS} (metrics) must be a port or address:port, not {value!r}")
    return host or LOCAL, int(port)


def _serve(exposition: object, rank: int, host: str, port: int) -> None:
    try:
        exposition.serve(rank, host, port + rank)  # type: ignore[attr-defined]
    except (OSError, OverflowError) as error:
        # A job must not end because of its metrics.
        _warn(rank, f"{METRICS}: cannot serve metrics on {host}:{port + rank}: {error}")


def _try(exposition: object, rank: int, path: Path) -> None:
    """A file that can be written now, but not later, does not end a job."""
    try:
        exposition.write(rank, path)  # type: ignore[attr-defined]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{METRICS_FILE} (metrics_file) must be a file that can be written, not {str(path)!r}: {error}"
        ) from error


def _writer(exposition: object, rank: int, path: Path) -> Callable[[], None]:
    def write() -> None:
        try:
            exposition.write(rank, path)  # type: ignore[attr-defined]
        except OSError as error:
            _warn(rank, f"{METRICS_FILE}: cannot write metrics to {path}: {error}")

    return write


def _warn(rank: int, text: str) -> None:
    log.say("diagnosis", 30, rank, text)


def report(rank: int, why: str, with_stacks: bool = True) -> str:
    """Returns a report of this process: what its groups do, their statistics, and its Python stacks."""
    lines = [f"ringreduce: report of rank {rank} (process {os.getpid()} on {socket.gethostname()}), {why}"]
    if with_stacks:
        own = look_at(os.getpid())
        if own is not None:
            lines += in_full(own)[1:]
    for one in of_process():
        if one.calls:
            lines += ["", *str(one).splitlines()]
    if with_stacks:
        for thread in stacks.here():
            lines += ["", f"thread {thread.name}"]
            lines += [f"  {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
    return "\n".join(lines) + "\n"


def _print(text: str) -> None:
    _engine.log.write_to_stderr(text)  # without the lock of sys.stderr, which the main thread may hold


@atexit.register
def finish() -> None:
    """Makes the last reports. Calling it again does nothing."""
    while _at_end:
        _at_end.pop()()


def _print_statistics(rank: int) -> None:
    text = report(rank, "at its end", with_stacks=False)
    if text.count("\n") > 1:
        if sys.stderr is not None:
            sys.stderr.flush()
        _print(text)


class _Reporter:
    """A thread that waits for signals, questions, and the time to write metrics."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._selector = selectors.DefaultSelector()
        self._source, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._source, selectors.EVENT_READ)
        self._listens: socket.socket | None = None
        self._signal = False
        self._write: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="ringreduce-report", daemon=True).start()

    def add(self, kinds: Iterable[str], write: Callable[[], None] | None) -> None:
        if "signal" in kinds and not self._signal:
            self._signal = True
            _engine.write_on_signal(signal.SIGUSR1, self._bell)
        if "answer" in kinds and self._listens is None:
            self._listen()
        if write is not None and self._write is None:
            self._write = write
            _at_end.append(write)
            os.write(self._bell, b"\0")

    def _listen(self) -> None:
        listens = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listens.bind(stacks.address(os.getpid()))
        except OSError as error:
            listens.close()
            return _warn(self._rank, f"{REPORT}: cannot answer: {error}")
        listens.listen()
        self._listens = listens
        self._selector.register(listens, selectors.EVENT_READ)
        os.write(self._bell, b"\0")
        return None

    def _run(self) -> None:
        written = 0.0
        while True:
            pause = None if self._write is None else max(written + WRITE_EVERY - time.monotonic(), 0)
            ready = {key.fileobj for key, _ in self._selector.select(pause)}
            if self._source in ready and any(os.read(self._source, 64)):
                _print(report(self._rank, "on SIGUSR1"))
            if self._listens is not None and self._listens in ready:
                self._answer(self._listens)
            if self._write is not None and time.monotonic() - written >= WRITE_EVERY:
                written = time.monotonic()
                self._write()

    def _answer(self, listens: socket.socket) -> None:
        with suppress(OSError), above_standard(), listens.accept()[0] as connection:
            stacks.answer(connection)


def _report(rank: int, kinds: Iterable[str], write: Callable[[], None] | None) -> None:
    global _reporter
    with _lock:
        if _reporter is None:
            _reporter = _Reporter(rank)
        _reporter.add(kinds, write)


def _forget_after_fork() -> None:
    """The thread is the parent's, and so is the socket, which the child must not keep open."""
    global _lock, _reporter
    _lock = threading.Lock()
    if _reporter is not None and _reporter._listens is not None:
        _reporter._listens.close()
    _reporter = None
    _started.clear()
    _at_end.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
