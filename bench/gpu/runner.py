"""Runs the steps of a visit, and writes what comes of each as soon as it is known."""

from __future__ import annotations

import os
import shutil
import sys
import time
from argparse import Namespace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import modules
import record
import tables
from running import OUTPUT, Session, shorten
from steps import ROOT, Step, after_a_hang, after_a_wrong_result, on_emulated_gpu
from suites import Suite
from tables import Line

HERE = Path(__file__).resolve().parent
RESERVE = 5.0  # seconds for ending a step and writing the table
BUILD_SECONDS = 240.0
MOST_BYTES = 15 << 20  # of a log
LOGS = ["log.txt", "build.txt"]
FILES = ["results.jsonl", "table.md", "modules.tar.gz", *LOGS]


class Visit:
    def __init__(self, options: Namespace) -> None:
        self.options, self.folder = options, options.folder.resolve()
        self.kit = options.kit.resolve()
        self.end = time.monotonic() + options.seconds - RESERVE
        self.test_seconds = options.test_seconds
        self.start_seconds, self.first_seconds = (60.0, 0.0) if options.emulated else (30.0, 5.0)
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in FILES:
            (self.folder / old).unlink(missing_ok=True)
        self.results, self.log = self.folder / "results.jsonl", self.folder / "log.txt"
        self.results.touch()
        self.read = 0  # bytes of the results
        self.suite: Suite | None = None
        self.builder: Session | None = None
        self.built = {"engine": True, "fronts": True} if options.built else {}
        self.sessions: list[Session] = []
        self.followed: set[str] = set()
        self.done_file = self.folder / "done.txt"  # which tests are done, for the next process of a suite
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
            "PYTHONPATH": f"{ROOT}:{HERE}:{modules.SITE}",
            **{"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
            **{"RINGREDUCE_TUNING": "off", "RINGREDUCE_VISIT_RESULTS": str(self.results)},
            "RINGREDUCE_VISIT_DONE": str(self.done_file),
        }

    def write(self, **line: Any) -> None:
        record.append(self.results, **line)

    def hear(self) -> None:
        """Reads the lines that the steps' processes have written."""
        with self.results.open("rb") as file:
            file.seek(self.read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.read += len(whole + newline)
        for line in tables.parsed(whole.decode()):
            if self.suite:
                self.suite.hear(line)
            if "built" in line:
                self.built[line["built"]] = line["ok"]

    # --- what is needed --------------------------------------------------------------------------------------

    def build(self) -> None:
        """Begins to build the Python modules, unless they are there."""
        if self.built:
            return
        command = [sys.executable, str(HERE / "modules.py"), str(self.kit), str(self.folder)]
        self.builder = Session(command, self.folder / "build.txt", self.environment, ROOT)
        self.sessions.append(self.builder)
        seconds = self.options.seconds if self.options.emulated else BUILD_SECONDS
        self.end_of_build = time.monotonic() + seconds

    def is_building(self, part: str) -> bool:
        self.hear()
        if part in self.built or self.builder not in self.sessions:
            return False
        if self.builder.child.poll() is None and time.monotonic() < self.end_of_build:
            return True
        self.close(self.builder)
        self.hear()
        return False

    def missing(self, step: Step) -> Line | None:
        """Returns the result of a step that cannot run, or nothing if it can. None: not yet."""
        program = step.command[0] if step.command else "{python}"
        if program != "{python}" and not shutil.which(program):
            return {"outcome": "left out", "why": f"there is no {program}"}
        if step.needs in ("engine", "fronts"):
            if self.is_building(step.needs):
                return None
            if not self.built.get(step.needs):
                why = f"the {step.needs} could not be built: see build.txt"
                return {"outcome": "not reached", "why": why}
        return {}

    # --- one step --------------------------------------------------------------------------------------------

    def session(self, step: Step, command: list[str]) -> Session:
        environment = {**self.environment, **step.environment}
        if self.options.emulated and not step.tests:
            environment = {**self.environment, **on_emulated_gpu(step, self.kit), **step.environment}
        with self.log.open("a") as file:
            file.write(f"\n===== {step.name}: {' '.join(command)}\n")
        words = {"{python}": sys.executable, "{kit}": str(self.kit), "{results}": str(self.results)}
        session = Session([words.get(word, word) for word in command], self.log, environment, ROOT)
        self.sessions.append(session)
        return session

    def close(self, session: Session) -> None:
        self.sessions.remove(session)
        if left := session.end():
            self.write(note=f"{left} processes could not be ended")

    def run_command(self, step: Step, end: float) -> Line:
        session = self.session(step, list(step.command))
        status = session.wait(lambda: time.monotonic() > end)
        output = session.output()
        self.close(session)
        last = (output.strip() or "no output").splitlines()[-1][:200]
        if status is None and time.monotonic() > self.end:
            return {"outcome": "cut off", "why": "the time was up"}
        if status is None:
            return {"outcome": "hung", "why": f"killed; its stacks are in {self.log.name}"}
        if status == 0:
            return {"outcome": "passed"}
        if status == record.LEFT_OUT:
            return {"outcome": "left out", "why": last}
        outcome = "wrong" if "wrong result" in output else "hung" if "not over after" in output else "failed"
        return {"outcome": outcome, "why": f"exit status {status}: {last}"}

    def run_tests(self, step: Step, end: float) -> Line:
        done = self.options.passed_before if step.name in self.options.failed_before else []
        self.suite = Suite(self, step, end, done, self.done_file)
        try:
            return self.suite.run()
        finally:
            self.suite = None

    def run_step(self, step: Step) -> Line:
        begin = time.monotonic()
        self.write(step=step.name, begun=now())
        result = (self.run_tests if step.tests else self.run_command)(step, min(begin + step.limit, self.end))
        return {**result, "seconds": round(time.monotonic() - begin, 1)}

    def finish(self, step: Step, result: Line) -> str:
        self.write(step=step.name, **result)
        self.write_table()
        seconds, why = result.get("seconds", 0), result.get("why", "")
        print(f"{step.name:45s} {result['outcome']:12s} {seconds:6.1f} s  {why}", flush=True)
        return str(result["outcome"])

    # --- all steps -------------------------------------------------------------------------------------------

    def follow_ups(self, step: Step, outcome: str) -> list[Step]:
        """Returns what shows more about what went wrong: at once, and once in a visit."""
        found = [step.instead] if step.instead and outcome not in tables.DONE else []
        if outcome not in self.followed:
            self.followed.add(outcome)
            found += after_a_hang(self.options.emulated) if outcome == "hung" else []
            found += after_a_wrong_result() if outcome == "wrong" else []
        return found

    def run(self, steps: list[Step]) -> None:
        """Runs the first step that can run, again and again."""
        pending = list(steps)
        while pending and time.monotonic() < self.end - 1:
            states = ((step, self.missing(step)) for step in pending)
            step, missing = next(((step, one) for step, one in states if one is not None), (None, None))
            if step is None:
                time.sleep(0.05)
                continue
            pending.remove(step)
            pending[:0] = self.follow_ups(step, self.finish(step, missing or self.run_step(step)))
        for step in pending:
            self.finish(step, {"outcome": "not reached"})

    def write_table(self) -> None:
        (self.folder / "table.md").write_text(tables.text(tables.read(self.results)))

    def close_all(self) -> None:
        for session in list(self.sessions):
            self.close(session)
        self.done_file.unlink(missing_ok=True)
        for log in (self.folder / name for name in LOGS):
            if log.exists() and log.stat().st_size > MOST_BYTES:
                shorten(log, MOST_BYTES - OUTPUT)
        self.write_table()


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
