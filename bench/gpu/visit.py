"""A visit of minutes to a card: tests and measures what bench/gpu/steps.py lists, in its order.

    python3 bench/gpu/visit.py 1a|1b|2a|2b|3|tests [--seconds 270] [--folder build/visit-results] [--kit build/card-kit]
                               [--only 'C program*' ...] [--again RESULTS.jsonl] [--built] [--emulated]

Needs a kit (`make card-kit`), pytest and pytest-timeout, and, to build the Python modules beside the first checks,
cmake, ninja, nanobind and numpy. It needs no make, git or network. Each step is a session of processes with a limit of
its own, and each test has 10 s on a card. What hangs is named, after the stacks of its Python threads have gone to the
log, and killed, and the rest goes on. The folder then has results.jsonl (a line for each result, written as soon as it
is known), table.md, log.txt (all output), build.txt and modules.tar.gz: modules for later visits of the same sources,
which belong into the kit's folder. "1" is 1a and then 1b. `--again` first runs what has not passed in an earlier visit.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kit
import modules
import record
import tables
from running import OUTPUT, Session, shorten
from steps import ROOT, Step, Table, after_a_hang, after_a_wrong_result, on_emulated_gpu
from tables import Line

HERE = Path(__file__).resolve().parent
RESERVE = 5.0  # seconds for ending a step and writing the table
BUILD_LIMIT = 240.0
MOST_HANGS = 3  # in one file of tests
FILES = ["results.jsonl", "table.md", "log.txt", "build.txt", "modules.tar.gz"]
PYTEST = ["-m", "pytest", "-v", "-p", "reporting", "-p", "no:cacheprovider", "-p", "no:xdist"]


@dataclass
class Tests:
    """What is known of the tests of a step."""

    collected: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    running: str = ""
    since: float = 0.0  # when it began, or the process did
    is_first: bool = True
    restarts: bool = False  # the process cannot use CUDA any more

    def hear(self, line: Line) -> None:
        if "collected" in line:
            self.collected = self.collected or line["collected"]
        elif "begin" in line:
            self.running, self.since = line["begin"], time.monotonic()
        elif "restart" in line:
            self.restarts = True
        elif "test" in line:
            self.outcomes[line["test"]] = line["outcome"]
            self.running, self.since, self.is_first = "", time.monotonic(), False

    def count(self, *outcomes: str) -> int:
        return sum(one in outcomes for one in self.outcomes.values())


class Visit:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.folder.resolve()
        self.end = time.monotonic() + options.seconds - RESERVE
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in FILES:
            (self.folder / old).unlink(missing_ok=True)
        self.results, self.log = self.folder / "results.jsonl", self.folder / "log.txt"
        self.results.touch()
        self.read = 0  # bytes of the results
        self.built: dict[str, bool] = {}
        self.tests = Tests()
        self.sessions: list[Session] = []
        self.followed: set[str] = set()
        self.start_limit = 60.0 if options.emulated else 30.0  # for imports and collection
        self.first = 0.0 if options.emulated else 5.0  # for CUDA to start, in the first test of a process
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
            **{
                "PYTHONPATH": f"{ROOT}:{HERE}:{modules.SITE}",
                "PYTHONUNBUFFERED": "1",
                "PYTHONFAULTHANDLER": "1",
            },
            **{"CUDA_DEVICE_MAX_CONNECTIONS": "32", "RINGREDUCE_TUNING": "off"},
            "RINGREDUCE_VISIT_RESULTS": str(self.results),
        }
        (ROOT / "build").mkdir(exist_ok=True)
        self.done_file = ROOT / "build" / f"visit-done-{os.getpid()}"

    def write(self, **line: Any) -> None:
        record.append(self.results, **line)

    def hear(self) -> None:
        """Reads the lines that the session's processes have written."""
        with self.results.open("rb") as file:
            file.seek(self.read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.read += len(whole + newline)
        for line in tables.parsed(whole.decode()):
            self.tests.hear(line)
            if "built" in line:
                self.built[line["built"]] = line["ok"]

    # --- what is needed --------------------------------------------------------------------------------------

    def build(self) -> None:
        """Begins to build the Python modules, unless they are there."""
        if self.options.built:
            self.built = {"engine": True, "fronts": True}
        else:
            command = [sys.executable, str(HERE / "modules.py"), str(self.options.kit), str(self.folder)]
            self.builder = Session(command, self.folder / "build.txt", self.environment, ROOT)
            self.sessions.append(self.builder)
            limit = self.options.seconds if self.options.emulated else BUILD_LIMIT
            self.end_of_build = time.monotonic() + limit

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
                return {
                    "outcome": "not reached",
                    "why": f"the {step.needs} could not be built: see build.txt",
                }
        return {}

    # --- steps -----------------------------------------------------------------------------------------------

    def session(self, step: Step, command: list[str]) -> Session:
        words = {
            **{"{python}": sys.executable, "{kit}": str(self.options.kit.resolve())},
            "{results}": str(self.results),
        }
        environment = {**self.environment, "RINGREDUCE_VISIT_DONE": str(self.done_file)}
        if self.options.emulated and not step.tests:
            environment |= on_emulated_gpu(step, self.options.kit.resolve())
        environment |= step.environment
        with self.log.open("a") as file:
            file.write(f"\n===== {step.name}: {' '.join(command)}\n")
        filled = [words.get(word, word) for word in command]
        session = Session(filled, self.log, environment, ROOT)
        self.sessions.append(session)
        return session

    def close(self, session: Session) -> None:
        self.sessions.remove(session)
        if left := session.end():
            self.write(note=f"{left} processes of the step could not be ended")

    def run_command(self, step: Step, end: float) -> Line:
        session = self.session(step, list(step.command))
        status = session.wait(lambda: time.monotonic() > end)
        output = session.output()
        self.close(session)
        last = (output.strip() or "no output").splitlines()[-1][:200]
        if status is None:
            return {"outcome": "hung", "why": f"killed; its stacks are in {self.log.name}"}
        if status == 0:
            return {"outcome": "passed"}
        if status == record.LEFT_OUT:
            return {"outcome": "left out", "why": last}
        outcome = "wrong" if "wrong result" in output else "failed"
        return {"outcome": outcome, "why": f"exit status {status}: {last}"}

    def overdue(self, limit: float) -> bool:
        """Tells whether the test that runs, or the start of the process, has taken too long."""
        self.hear()
        tests = self.tests
        allowed = limit + self.first * tests.is_first if tests.running else self.start_limit
        return time.monotonic() > tests.since + allowed

    def run_tests(self, step: Step, end: float) -> Line:
        """Runs a file of tests. After one that hangs, or ends its process, another process runs the rest."""
        tests = self.tests = Tests()
        hangs, status, why = 0, None, ""
        while hangs < MOST_HANGS:
            done = [
                *tests.outcomes,
                *(self.options.passed_before if step.name in self.options.failed_before else []),
            ]
            self.done_file.write_text("\n".join(done))
            tests.running, tests.since, tests.is_first, tests.restarts = "", time.monotonic(), True, False
            session = self.session(step, [*step.command, "{python}", *PYTEST, *step.tests])
            limit = self.options.test_seconds * step.patience
            status = session.wait(lambda limit=limit: time.monotonic() > end or self.overdue(limit))
            self.close(session)
            self.hear()
            if status is None and time.monotonic() > end:
                why = "its time was up"
                break
            if not tests.running and tests.restarts and status is not None:
                continue
            if not tests.running:
                break
            hangs += status is None
            outcome = "hung" if status is None else "failed"
            why_test = f"killed after {limit:.0f} s" if status is None else f"its process ended: {status}"
            self.write(
                test=tests.running, outcome=outcome, seconds=time.monotonic() - tests.since, why=why_test
            )
            self.hear()
        return self.result_of(tests, status, hangs, why)

    def result_of(self, tests: Tests, status: int | None, hangs: int, why: str) -> Line:
        passed, skipped = tests.count("passed"), tests.count("skipped")
        bad = [
            f"{tests.count(one)} {one}" for one in ("hung", "wrong", "failed", "cut off") if tests.count(one)
        ]
        left = max(tests.collected - len(tests.outcomes), 0)
        counts = ", ".join(
            [f"{passed} passed", f"{skipped} skipped", *bad, *([f"{left} not reached"] if left else [])]
        )
        if tests.count("hung"):
            outcome = "hung"
        elif tests.count("wrong"):
            outcome = "wrong"
        elif why:
            outcome = "cut off"
        elif status is None:
            outcome = "hung"
        elif tests.count("failed") or status not in (0, 5):
            outcome = "failed"
        else:
            outcome = "passed" if passed else "left out"
        given_up = f"given up after {hangs} hangs" if hangs == MOST_HANGS else ""
        ended = f"exit status {status}" if outcome == "failed" and not tests.count("failed") else ""
        return {"outcome": outcome, "why": "; ".join(filter(None, [counts, why, given_up, ended]))}

    def run_step(self, step: Step) -> Line:
        begin = time.monotonic()
        limit = min(step.limit, self.end - begin)
        self.write(step=step.name, begun=now())
        result = (self.run_tests if step.tests else self.run_command)(step, begin + limit)
        if result["outcome"] == "hung" and not step.tests and limit < step.limit:
            result = {"outcome": "cut off", "why": f"after {limit:.0f} s the time was up"}
        return {**result, "seconds": round(time.monotonic() - begin, 1)}

    def finish(self, step: Step, result: Line) -> str:
        self.write(step=step.name, **result)
        self.write_table()
        say(
            f"{step.name:45s} {result['outcome']:12s} {result.get('seconds', 0):6.1f} s  {result.get('why', '')}"
        )
        return str(result["outcome"])

    def follow_ups(self, step: Step, outcome: str) -> list[Step]:
        """What shows more about what went wrong, at once and once."""
        found = [step.instead] if step.instead and outcome not in tables.DONE else []
        for bad, more in (
            ("hung", lambda: after_a_hang(self.options.emulated)),
            ("wrong", after_a_wrong_result),
        ):
            if outcome == bad and bad not in self.followed:
                self.followed.add(bad)
                found += more()
        return found

    def run(self, steps: list[Step]) -> None:
        """Runs the first step that can run, again and again."""
        pending = list(steps)
        while pending and time.monotonic() < self.end - 1:
            states = ((step, self.missing(step)) for step in pending)
            step, missing = next(
                ((step, result) for step, result in states if result is not None), (None, None)
            )
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
        for log in ("log.txt", "build.txt"):
            if (self.folder / log).exists() and (self.folder / log).stat().st_size > 15 << 20:
                shorten(self.folder / log, (15 << 20) - OUTPUT)
        self.write_table()


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def say(text: str) -> None:
    print(text, flush=True)


class Keeper:
    """A process that keeps the GPU initialised. It says whether there is a card, and ends with this process."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "facts.py"), "hold"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout
        is_there = select.select([self.child.stdout], [], [], 60)[0]
        self.answer = (
            self.child.stdout.readline().strip() if is_there else "the driver has not answered for 60 s"
        )

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


def chosen(options: argparse.Namespace, table: Callable[[bool], Table] = Table) -> list[Step]:
    """Returns the steps: first those that have not passed in an earlier visit."""
    calls = table(options.emulated).calls()
    steps = [step for name, one in calls.items() if name.startswith(options.visit) for step in one]
    earlier = tables.read(options.again) if options.again else []
    options.passed_before = [
        line["test"] for line in tables.named(earlier, "test") if line["outcome"] in tables.DONE
    ]
    options.failed_before = {
        line["step"] for line in tables.named(earlier, "step") if line["outcome"] not in tables.DONE
    }
    known = {step.name: step for one in calls.values() for step in one}
    steps = [*(step for name, step in known.items() if name in options.failed_before), *steps]
    unique = {step.name: step for step in steps}.values()
    return [step for step in unique if any(fnmatch.fnmatch(step.name, pattern) for pattern in options.only)]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("visit", choices=["1", "1a", "1b", "2", "2a", "2b", "3", "tests"])
    parser.add_argument("--seconds", type=float, default=270.0, help="time for all of it (270)")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "visit-results", help="for the results; emptied"
    )
    parser.add_argument("--kit", type=Path, help="from make card-kit")
    parser.add_argument("--only", nargs="+", default=["*"], help="only steps whose names match")
    parser.add_argument(
        "--again", type=Path, help="results.jsonl of an earlier visit: first what has not passed there"
    )
    parser.add_argument("--built", action="store_true", help="use the Python modules that are in place")
    parser.add_argument("--emulated", action="store_true", help="a dry run on the emulated GPU")
    parser.add_argument("--test-seconds", type=float, help="for one test (10; on the emulated GPU 60)")
    options = parser.parse_args(arguments)
    options.test_seconds = options.test_seconds or (60.0 if options.emulated else 10.0)
    options.kit = options.kit or ROOT / "build" / ("card-kit-emulated" if options.emulated else "card-kit")
    return options


def main(arguments: list[str], table: Callable[[bool], Table] = Table) -> int:
    options = parse(arguments)
    steps = chosen(options, table)
    if problem := kit.problem(options.kit):
        say(problem)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is ended, too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    visit = Visit(options)
    keeper = None if options.emulated else Keeper()
    card = keeper.answer if keeper else "this is a run on the emulated GPU"
    visit.environment["RINGREDUCE_TEST_CARD"] = card
    if keeper and card != "yes":
        say(f"{card}; --emulated is a dry run without one")
        return 2
    try:
        described = kit.described(options.kit)
        visit.write(visit=options.visit, date=now(), commit=described.get("commit", ""), sources=kit.digest())
        visit.build()
        visit.run(steps)
    finally:
        visit.close_all()
        if keeper:
            keeper.close()
        say((visit.folder / "table.md").read_text())
    return int(bool(tables.undone(tables.read(visit.results))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
