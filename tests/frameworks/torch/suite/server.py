"""Imports torch once and forks the ranks of the tests that it is asked for: requests and answers are lines of JSON.

A fork costs milliseconds where an import of torch costs seconds in every rank. It is safe as long as this process
has one thread and never ran torch's own pool, which is checked before each fork. A rank leaves through the
interpreter's ordinary end, so that what a backend does there is tested, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.settled import settle

from . import rank as ranks
from .cases import Cases
from .outcome import FAILED, HUNG, PASSED, SKIPPED, Outcome
from .stacks import condense

GRACE = 4.0  # seconds that the others have when a rank has failed: longer than a backend needs to notice
STACKS = 3.0  # seconds for the stacks of the ranks that hang
PROBE = 5  # seconds a test may take that finds no process group


def _state(process: int) -> str:
    """Stopped, waiting in the kernel, running: what tells a machine's pause from a hang."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return "gone"
    return next(line.split(maxsplit=1)[1] for line in status.splitlines() if line.startswith("State:"))


class Running:
    """One test whose ranks run."""

    def __init__(self, test: str, timeout: float) -> None:
        self.test, self.timeout = test, timeout
        self.folder = Path(tempfile.mkdtemp(prefix="torch-suite-"))
        self.start = time.monotonic()
        self.deadline = self.start + timeout
        self.ranks: dict[int, int] = {}  # what still runs: process -> rank
        self.codes: dict[int, int] = {}
        self.group = 0  # of the processes
        self.hung: list[int] = []
        self.states: dict[int, str] = {}  # of the processes that hang, as the kernel tells them
        self.stage = 0  # of ending it: 0 not, 1 asked for Python's stacks, 2 for the native ones, 3 killed
        ranks.make_folders(self.folder)

    def ended(self, process: int, code: int) -> None:
        """Takes note that a rank's process ended; a failure shortens the time of the others."""
        self.codes[self.ranks.pop(process)] = code
        if code and self.stage == 0:
            self.deadline = min(self.deadline, time.monotonic() + GRACE)

    def end(self) -> None:
        """The time is over: first all stacks, then the end."""
        if self.stage == 0:
            self.hung = sorted(self.ranks.values())
            self.states = {rank: _state(process) for process, rank in self.ranks.items()}
        # torch prints the native stacks of all threads at SIGABRT, where the test has got as far as asking for it.
        kind, patience = [(signal.SIGUSR1, 0.5), (signal.SIGABRT, STACKS), (signal.SIGKILL, STACKS)][
            self.stage
        ]
        for process in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kind)
        self.stage = min(self.stage + 1, 2)
        self.deadline = time.monotonic() + patience

    def sweep(self) -> None:
        """Ends what the ranks may have started: they are a process group of their own."""
        if self.group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)

    def told(self, rank: int) -> str:
        """A rank's exception and the end of its output."""
        parts = [f"its process: {self.states[rank]}"] if rank in self.states else []
        error, output = ranks.error(self.folder, rank), ranks.output(self.folder, rank)
        if error.exists():
            parts.append(error.read_text(encoding="utf-8", errors="replace")[-6000:].rstrip())
        if rank in self.codes and self.codes[rank] < 0 and rank not in self.hung:
            parts.append(f"ended by signal {signal.Signals(-self.codes[rank]).name}")
        if output.exists():
            text = output.read_text(encoding="utf-8", errors="replace")
            parts.append(f"--- output\n{condense(text) if rank in self.hung else text[-3000:].rstrip()}")
        return "\n".join(parts)

    def outcome(self, skips: dict[int, str]) -> Outcome:
        """What became of it, by the exit codes of all ranks."""
        bad = {rank for rank, code in self.codes.items() if code and code not in skips}
        skipped = [skips[code] for code in self.codes.values() if code in skips]
        failed = sorted(bad - set(self.hung))
        result = Outcome(self.test, PASSED, seconds=round(time.monotonic() - self.start, 2))
        if failed:
            rest = f"; after that ranks {self.hung} did not end" if self.hung else ""
            result.outcome, result.reason = FAILED, f"ranks {failed} failed{rest}"
        elif self.hung:
            result.outcome, result.reason = HUNG, f"ranks {self.hung} still ran after {self.timeout:g} s"
        elif skipped:
            result.outcome, result.reason = SKIPPED, skipped[0]
        if result.outcome in (FAILED, HUNG):
            result.ranks = {str(rank): self.told(rank) for rank in sorted(bad | set(self.hung))}
        return result


class Server:
    """Runs up to `jobs` tests at a time."""

    def __init__(self, told: argparse.Namespace, answers: int) -> None:
        self.told, self.answers = told, answers
        self.cases = Cases(told.backend, told.world)
        self.cases.torch.set_num_threads(1)
        self.skips = {**self.cases.static_skips(), **self._probe()}
        self.poll = selectors.PollSelector()  # an epoll would be shared with the ranks
        self.waiting: list[dict[str, Any]] = []
        self.running: list[Running] = []
        self.open = True
        settle()  # otherwise what is there now is collected when a rank ends, which takes a second

    def _probe(self) -> dict[str, str]:
        """Finds what torch skips when a test begins, in one process instead of in a group for each test."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with contextlib.suppress(BaseException):
                os.write(writing, json.dumps(self._skips_at_begin()).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            found = stream.read()
        os.waitpid(child, 0)
        return json.loads(found)

    def _skips_at_begin(self) -> dict[str, str]:
        ranks.die_with_parent()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1), os.dup2(nothing, 2)

        def late(*_: Any) -> None:
            raise TimeoutError

        signal.signal(signal.SIGALRM, late)
        found = {}
        for name in self.cases.names:
            cls, method = self.cases.find(name)
            body = getattr(cls, method)
            if name.startswith("ddp") or getattr(body, "__unittest_skip__", False):
                continue
            case = cls(method)
            case.rank = 0
            signal.alarm(PROBE)
            try:
                body(case)  # ends at once, by a skip or for want of a process group
            except SystemExit as end:
                if end.code in self.cases.skips:
                    found[name] = self.cases.skips[end.code]
            except BaseException:
                pass
            finally:
                signal.alarm(0)
        return found

    def say(self, answer: dict[str, Any]) -> None:
        """Writes one line."""
        os.write(self.answers, (json.dumps(answer) + "\n").encode())

    def serve(self) -> int | None:
        """Answers requests until the input ends. Returns an exit code in a process that was a rank."""
        self.say({"names": self.cases.names, "skips": self.skips})
        requests = sys.stdin.buffer
        os.set_blocking(requests.fileno(), False)
        self.poll.register(requests, selectors.EVENT_READ)
        rest = b""
        while self.open or self.waiting or self.running:
            now = time.monotonic()
            wait = min((test.deadline - now for test in self.running), default=60.0)
            for key, _ in self.poll.select(max(0.0, wait)):
                if key.data is not None:
                    self._collect(key, *key.data)
                    continue
                more = requests.read()
                self.open = bool(more)
                if not self.open:
                    self.poll.unregister(requests)
                *lines, rest = (rest + (more or b"")).split(b"\n")
                self.waiting += [json.loads(line) for line in lines]
            for test in self.running:
                if test.ranks and time.monotonic() >= test.deadline:
                    test.end()
            while self.waiting and len(self.running) < self.told.jobs:
                code = self._start(self.waiting.pop(0))
                if code is not None:
                    return code
        return None

    def _collect(self, key: selectors.SelectorKey, test: Running, process: int) -> None:
        self.poll.unregister(key.fileobj)
        os.close(key.fd)
        _, status = os.waitpid(process, 0)
        test.ended(process, os.waitstatus_to_exitcode(status))
        if test.ranks:
            return
        test.sweep()
        self.running.remove(test)
        self.say(test.outcome(self.cases.skips).__dict__)
        shutil.rmtree(test.folder, ignore_errors=True)

    def _start(self, request: dict[str, Any]) -> int | None:
        test = Running(request["test"], request["timeout"])
        for rank in range(self.told.world):
            process = self._spawn(test, rank) if self.told.start == "spawn" else self._fork()
            if process == 0:
                return ranks.run(self.cases, test.test, rank, test.folder)
            test.group = test.group or process
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(process, test.group)
            test.ranks[process] = rank
        for process in test.ranks:
            self.poll.register(os.pidfd_open(process), selectors.EVENT_READ, (test, process))
        self.running.append(test)
        return None

    def _fork(self) -> int:
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"{len(threads)} threads: a fork is not safe"
        return os.fork()

    def _spawn(self, test: Running, rank: int) -> int:
        told = {"backend": self.told.backend, "world": self.told.world, "test": test.test}
        told |= {"rank": rank, "folder": str(test.folder)}
        command = [sys.executable, "-m", f"{__package__}.rank", json.dumps(told)]
        return os.posix_spawn(sys.executable, command, os.environ)


def main() -> int:
    """`python -m tests.frameworks.torch.suite.server`: see client.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--start", choices=["fork", "spawn"], default="fork")
    told = parser.parse_args()
    ranks.die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # what is printed while torch is imported must not get between the answers
    return Server(told, answers).serve() or 0


if __name__ == "__main__":
    sys.exit(main())
