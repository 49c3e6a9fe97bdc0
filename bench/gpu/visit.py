"""A visit of minutes to a card: tests and measures what bench/gpu/steps.py lists, in its order.

    python3 bench/gpu/visit.py 1a|1b|2a|2b|3|tests [--seconds 270] [--folder build/visit-results] [--kit build/card-kit]
                               [--only 'C program*' ...] [--again RESULTS.jsonl] [--built] [--emulated]

Needs a kit (`make card-kit`), pytest, pytest-timeout and ml_dtypes, and, to build the Python modules beside the first
checks, cmake, ninja, nanobind and numpy. It needs no make, git or network. Each step is a session of processes with a
limit of its own, and each test has 10 s on a card. The stacks of a step that hangs are written to the log, then the
step is killed and named, and the visit continues with the next one. The folder then has results.jsonl (a line for each
result, written as soon as it is known), table.md, log.txt (all output), build.txt and modules.tar.gz: modules for later
visits of the same sources, which belong into the kit's folder. "1" is 1a and then 1b. `--again` first runs what has
not passed in an earlier visit.
"""

from __future__ import annotations

import argparse
import fnmatch
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kit
import tables
from runner import HERE, Visit, now
from steps import ROOT, Step, Table

DRIVER_SECONDS = 60.0


class Keeper:
    """A process that keeps the GPU initialised. It says whether there is a card, and ends with this process."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "facts.py"), "hold"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout
        self.answer = f"the driver has not answered for {DRIVER_SECONDS:.0f} s"
        if select.select([self.child.stdout], [], [], DRIVER_SECONDS)[0]:
            self.answer = self.child.stdout.readline().strip()

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
        print(problem)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is ended, too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    visit = Visit(options)
    keeper = None
    try:
        commit = kit.described(options.kit).get("commit", "")
        visit.write(visit=options.visit, date=now(), commit=commit, sources=kit.digest())
        visit.build()
        keeper = None if options.emulated else Keeper()
        card = keeper.answer if keeper else "this is a run on the emulated GPU"
        visit.environment["RINGREDUCE_TEST_CARD"] = card
        if keeper and card not in ("yes", ""):  # nothing: it has failed itself, and the tests ask
            print(f"{card}; --emulated is a dry run without one")
            return 2
        visit.run(steps)
    finally:
        visit.close_all()
        if keeper:
            keeper.close()
        print((visit.folder / "table.md").read_text(), flush=True)
    return int(bool(tables.undone(tables.read(visit.results))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
