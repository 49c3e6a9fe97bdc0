"""Runs a campaign: prints what was wrong with each trial as it comes, and then a table.

The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from pprint import pformat

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: ranks are forked

from tests.faults.chaos import lanes, plan
from tests.faults.chaos.judge import Verdict, judge
from tests.faults.chaos.place import Place, why_no_hosts
from tests.faults.chaos.run import run
from tests.faults.chaos.table import Result, table

SHOWN = 400  # characters of what is wrong


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long trials are begun")
    parser.add_argument("--trials", type=int, help="at most so many; by default any number")
    parser.add_argument("--seed", type=int, help="of all that is drawn; by default a new one")
    parser.add_argument("--lanes", type=int, default=4, help="trials that run at a time")
    parser.add_argument(
        "--timeout", type=float, default=plan.SHORT, help="seconds of a timeout that must come"
    )
    parser.add_argument("--within", type=float, help="seconds in which every error must have come")
    parser.add_argument("--transports", help="comma-separated; by default all that there can be here")
    parser.add_argument("--kinds", default="", help=f"of {', '.join(plan.MOMENTS)}; by default all")
    parser.add_argument(
        "--moments", default="", help="before, during, between, shrink, init, any; by default all"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NUMBER/TRANSPORT/KIND/MOMENT", help="these trials alone, in full"
    )
    parser.add_argument("--repeat", type=int, default=1, help="how often, with --only")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    began = time.monotonic()
    results = []
    for trial, (verdict, told) in lanes.over(
        _trials(given, seed), _work(given), given.lanes, began + given.seconds
    ):
        results.append(Result(trial.kind, trial.transport, frozenset(verdict.wrong), verdict.seconds))
        if verdict.wrong:
            _complain(trial, verdict, given.timeout)
        if given.only:
            print(told, flush=True)
    kinds = {kind: place for place, kind in enumerate(plan.MOMENTS)}
    results.sort(key=lambda result: (kinds[result.kind], plan.TRANSPORTS.index(result.transport)))
    print(table(results))
    bad = sum(bool(result.wrong) for result in results)
    print(f"{len(results)} trials in {time.monotonic() - began:.0f} s, {bad} of them wrong; seed {seed}")
    return 1 if bad or not results else 0


def _trials(given: argparse.Namespace, seed: int) -> Iterator[plan.Trial]:
    if given.only:
        for name in given.only * given.repeat:
            number, transport, kind, moment = name.split("/")
            yield plan.draw_of(seed, int(number), transport, kind, moment, given.timeout)
        return
    among = _among(given)
    print(f"seed {seed}: {len(among)} combinations of transport, fault and moment", flush=True)
    for number in range(given.trials) if given.trials else itertools.count():
        yield plan.draw(seed, number, among, given.timeout)


def _work(given: argparse.Namespace) -> Callable[[plan.Trial, Place], tuple[Verdict, str]]:
    def work(trial: plan.Trial, place: Place) -> tuple[Verdict, str]:
        outcome = run(trial, place)
        told = f"{pformat(trial, width=120)}\n{pformat(outcome, width=120)}" if given.only else ""
        return judge(trial, outcome, given.within), told

    return work


def _among(given: argparse.Namespace) -> list[tuple[str, str, str]]:
    transports = given.transports.split(",") if given.transports else plan.TRANSPORTS
    if find_library("fabric") is None:
        print(f"nothing goes over {' or '.join(plan.OVER_LIBFABRIC)}: libfabric is not installed")
        transports = [transport for transport in transports if transport not in plan.OVER_LIBFABRIC]
    kinds, moments = ([word for word in text.split(",") if word] for text in (given.kinds, given.moments))
    among = plan.cells(transports, kinds, moments)
    on_hosts = [cell for cell in among if plan.draw_of(0, 0, *cell, given.timeout).on_hosts]
    if on_hosts and (why_not := why_no_hosts()):
        print(f"no link is cut, and no newcomers come from other hosts: {why_not}")
        among = [cell for cell in among if cell not in on_hosts]
    return among


def _complain(trial: plan.Trial, verdict: Verdict, timeout: float) -> None:
    only = f"{trial.number}/{trial.transport}/{trial.kind}/{trial.moment}"
    command = (
        f"python -m tests.faults.chaos --seed {trial.seed} --timeout {timeout:g} --only {shlex.quote(only)}"
    )
    print(f"{command}: {', '.join(verdict.wrong)}")
    for category, texts in verdict.wrong.items():
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        print(f"    {category}: {' '.join(texts[0].split())[:SHOWN]}{more}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
