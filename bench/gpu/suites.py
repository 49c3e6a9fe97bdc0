"""A file of tests in a visit: one process after the other, each of which runs what the one before has left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from running import Session
from steps import Step
from tables import DONE, Line

MOST_HANGS = 3  # in one file
PYTEST = ["-m", "pytest", "-v", "-p", "reporting", "-p", "no:cacheprovider", "-p", "no:xdist"]


class Host(Protocol):
    """What a suite needs of its visit."""

    test_seconds: float
    start_seconds: float  # for imports and collection
    first_seconds: float  # for CUDA to start, in the first test of a process

    def session(self, step: Step, command: list[str]) -> Session: ...
    def close(self, session: Session) -> None: ...
    def write(self, **line: object) -> None: ...
    def hear(self) -> None: ...


class Suite:
    def __init__(self, host: Host, step: Step, end: float, done: list[str], done_file: Path) -> None:
        self.host, self.step, self.end = host, step, end
        self.done, self.done_file = done, done_file
        self.limit = host.test_seconds * step.patience
        self.collected = 0
        self.outcomes: dict[str, str] = {}
        self.reason = ""  # of the last one that has not passed
        self.prepare()

    def prepare(self) -> None:
        """Before another process."""
        self.running, self.since = "", time.monotonic()  # the test that runs, or nothing, and since when
        self.is_first, self.restarts = True, False
        self.done_file.write_text("\n".join([*self.outcomes, *self.done]))

    def hear(self, line: Line) -> None:
        """Takes a line that reporting.py has written."""
        if "collected" in line:
            self.collected = self.collected or line["collected"]
        elif "begin" in line:
            self.running, self.since = line["begin"], time.monotonic()
        elif "restart" in line:
            self.restarts = True
        elif "test" in line:
            self.outcomes[line["test"]] = line["outcome"]
            self.reason = line["why"] or self.reason
            self.running, self.since, self.is_first = "", time.monotonic(), False

    def count(self, outcome: str) -> int:
        return list(self.outcomes.values()).count(outcome)

    def is_overdue(self) -> bool:
        """Tells whether the test that runs, or the start or end of its process, has taken too long."""
        self.host.hear()
        allowed = self.limit
        if self.is_first:
            extra = self.host.first_seconds if self.running else self.host.start_seconds
            allowed += extra * self.step.patience
        return time.monotonic() > min(self.since + allowed, self.end)

    def run_process(self) -> int | None:
        self.prepare()
        session = self.host.session(self.step, [*self.step.command, "{python}", *PYTEST, *self.step.tests])
        status = session.wait(self.is_overdue)
        self.host.close(session)
        self.host.hear()
        return status

    def run(self) -> Line:
        hangs = 0
        while hangs < MOST_HANGS:
            status = self.run_process()
            if status is None and time.monotonic() > self.end:
                return self.result("cut off", "its time was up")
            if self.running:
                outcome = "hung" if status is None else "failed"
                why = f"killed after {self.limit:.0f} s" if status is None else f"its process ended: {status}"
                seconds = round(time.monotonic() - self.since, 1)
                self.host.write(test=self.running, outcome=outcome, seconds=seconds, why=why)
                self.host.hear()
                hangs += status is None
            elif status is None:
                return self.result("hung", "its process neither went on nor ended")
            elif not self.restarts:
                failed = status not in (0, 5) and not any(one not in DONE for one in self.outcomes.values())
                return self.result("failed", f"exit status {status}") if failed else self.result()
        return self.result("hung", f"given up after {hangs} hangs")

    def result(self, outcome: str = "", why: str = "") -> Line:
        counted = {one: self.count(one) for one in ("hung", "wrong", "failed") if self.count(one)}
        left = max(self.collected - len(self.outcomes), 0)
        counts = {"passed": self.count("passed"), "skipped": self.count("skipped"), **counted}
        counts |= {"not reached": left} if left else {}
        worst = next(iter(counted), "passed" if counts["passed"] else "left out")
        why = why or (self.reason if worst == "left out" else "")
        said = ", ".join(f"{number} {one}" for one, number in counts.items())
        return {"outcome": next(iter(counted), outcome) or worst, "why": "; ".join(filter(None, [said, why]))}
