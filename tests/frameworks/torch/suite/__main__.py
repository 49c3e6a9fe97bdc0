"""Runs torch's tests with a backend and, where no results are kept, with Gloo; ends with a table.

The exit status is 1 when a test passes with Gloo and not with the backend, but for those in expected.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import as_completed

from . import expected, outcome, report
from .cases import GLOO
from .client import Suite
from .outcome import PASSED, SKIPPED, Outcome

TIMEOUT = 100.0  # seconds; torch's groups give up after 60, so that most hangs end with an error before
FEW = 4  # worlds beyond add only what torch skips in smaller ones


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.torch.suite", description=__doc__)
    parser.add_argument(
        "--backend",
        default="ringreduce",
        help="'renamed' is Gloo under another name, and 'as-gloo' is ours under Gloo's",
    )
    parser.add_argument("--worlds", default="2,3,4,8", help="numbers of ranks")
    parser.add_argument(
        "--test", action="append", default=[], help="part of a test's name; may be given again"
    )
    parser.add_argument("--exact", action="store_true", help="--test is the whole name")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for one test")
    parser.add_argument("--start", choices=["fork", "spawn"], default="fork", help="how ranks come to be")
    parser.add_argument("--debug", choices=["INFO", "DETAIL"], default="", help="TORCH_DISTRIBUTED_DEBUG")
    parser.add_argument("--repeat", type=int, default=1, help="the worst outcome of so many runs counts")
    parser.add_argument("--redo", action="store_true", help="run Gloo's tests although results are kept")
    parser.add_argument(
        "--verbose", action="store_true", help="print all that is known of what does not pass"
    )
    return parser.parse_args()


def _wanted(told: argparse.Namespace, suite: Suite, before: set[str]) -> list[str]:
    names = suite.names
    if told.test:
        names = [n for n in names if any(n == t if told.exact else t in n for t in told.test)]
    return [name for name in names if name not in before]


def _run(told: argparse.Namespace, backend: str, world: int, before: set[str]) -> dict[str, Outcome]:
    """Runs the tests of one world and prints a line for each that does not pass."""
    start = time.monotonic()
    found: dict[str, Outcome] = {}
    with Suite(backend, world, told.jobs, told.start, told.debug) as suite:
        names = _wanted(told, suite, before)
        asked = [suite.ask(name, told.timeout) for name in names for _ in range(told.repeat)]
        for future in as_completed(asked):
            one = future.result()
            if one.outcome not in (PASSED, SKIPPED):
                told_of = one.text() if told.verbose else f"{one.test}: {one.outcome}: {one.first_error()}"
                print(f"{backend} world {world} {told_of}", flush=True)
            if one.test not in found or found[one.test].outcome in (PASSED, SKIPPED):
                found[one.test] = one
    print(f"{backend} world {world}: {len(found)} tests, {time.monotonic() - start:.0f} s", flush=True)
    return found


def _gloo(told: argparse.Namespace, world: int, before: set[str]) -> dict[str, Outcome]:
    """Gloo's outcomes: those that are kept, if they are of all tests."""
    file = outcome.path(GLOO, world, told.debug)
    kept = {} if told.redo else outcome.read(file)
    if kept:
        return kept
    found = _run(told, GLOO, world, before)
    poor = [one.test for one in found.values() if one.outcome not in (PASSED, SKIPPED)]
    if poor:  # what passes at times is asked of ours
        again = _run(argparse.Namespace(**{**vars(told), "test": poor, "exact": True}), GLOO, world, before)
        found |= {test: one for test, one in again.items() if one.outcome == PASSED}
    if not told.test:
        outcome.write(file, list(found.values()))
    return found


def _ran(outcomes: dict[str, Outcome]) -> set[str]:
    return {one.test for one in outcomes.values() if one.outcome != SKIPPED}


def main() -> int:
    """The command."""
    told = _arguments()
    ours: report.Outcomes = {}
    gloo: report.Outcomes = {}
    ran: set[str] = set()
    for world in sorted(int(world) for world in told.worlds.split(",")):
        before = ran if world > FEW else set()
        gloo[world] = _gloo(told, world, before)
        ours[world] = gloo[world] if told.backend == GLOO else _run(told, told.backend, world, before)
        if told.backend != GLOO and not told.test:
            outcome.write(outcome.path(told.backend, world, told.debug), list(ours[world].values()))
        ran |= _ran(gloo[world])
    entries = expected.load() if told.backend != GLOO else []
    verdict = report.judge(ours, gloo, entries)
    print(report.lists(verdict, entries))
    print(report.table(ours, gloo, told.backend))
    return 1 if verdict.worse or verdict.stale else 0


if __name__ == "__main__":
    sys.exit(main())
