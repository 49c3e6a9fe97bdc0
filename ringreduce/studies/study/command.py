"""The command ``ringreduce study``: runs a plan, compares two studies, or writes a report."""

from __future__ import annotations

import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ringreduce.errors import Error
from ringreduce.studies.bench.contest import under_launcher
from ringreduce.studies.study import launched
from ringreduce.studies.study.folder import Study, load
from ringreduce.studies.study.plan import Plan, read_plan
from ringreduce.studies.study.runner import Runner, locked, opened, status
from ringreduce.studies.study.tables import changed, won

__all__ = ["run"]


def run(options: Namespace) -> int:
    what, *others = options.what or [""]
    if what == "compare":
        if len(others) != 2:
            raise ValueError("study compare takes two folders: ringreduce study compare BEFORE AFTER")
        print(changed(load(others[0]), load(others[1]), options.all))
        return 0
    if what == "report":
        if len(others) != 1:
            raise ValueError("study report takes one folder: ringreduce study report FOLDER")
        return report(Path(others[0]))
    if others:
        raise ValueError(f"study takes a single plan; {others[0]!r} is one argument too many")
    if options.budget is not None and not options.budget > 0:
        raise ValueError("--budget must be more than 0 seconds")
    path = Path(what) if what else None
    plan = None if path is None else read_plan(path)
    folder = options.folder or Path("study" if path is None else f"{path.stem}-study")
    if under_launcher():
        return launched.run(plan, folder, options.budget)
    return study(plan, folder, options.budget)


def report(folder: Path) -> int:
    from ringreduce.studies.study.report import write  # type: ignore[import-not-found,unused-ignore]

    path = folder / "report.html"
    write(load(folder), path)
    print(f"Report: {path}")
    return 0


def study(plan: Plan | None, folder: Path, budget: float | None) -> int:
    """Runs a study until everything is measured, the budget is spent, or the user interrupts it."""
    with locked(folder):
        found, plan = opened(folder, plan)
        budget = budget or plan.budget_s
        again = f"ringreduce study --folder {shlex.quote(str(folder))}"
        runner = Runner(found, plan)
        try:
            with _interruptions() as check:
                while (following := runner.next(budget)) is not None:
                    group, cells = following
                    _announce(found, group, budget)
                    runner.launch(group, cells)
                    check()
        except KeyboardInterrupt:
            _announce(None)
            launches = found.rows.launch.nunique()
            print(
                f"ringreduce: interrupted after {launches} launches, which are kept. Continue with: {again}",
                file=sys.stderr,
            )
            return 130
        except Error as error:
            _announce(None)
            text = str(error).strip().splitlines()[-1]
            raise ValueError(f"{folder}: launch on {group}: {text}") from error
        _announce(None)
        done = not any(runner.unfinished(group) for group in runner.groups())
        print(won(found, plan))
        if not done:
            print(f"The budget of {budget:.0f} s is spent. Continue with: {again} --budget {2 * budget:.0f}")
        return status(found)


@contextmanager
def _interruptions() -> Iterator[Callable[[], None]]:
    """Yields a function that raises KeyboardInterrupt if an interrupt was lost.

    Python drops exceptions that are raised in callbacks, such as those that run at each fork.
    """
    caught = []

    def interrupt(*_: object) -> None:
        caught.append(True)
        raise KeyboardInterrupt

    def check() -> None:
        if caught:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _announce(found: Study | None, group: object = None, budget: float = 0) -> None:
    """Shows on a terminal which launch is running, or clears the line if ``found`` is None."""
    if sys.stderr.isatty():
        text = "" if found is None else f"{group}: {found.spent_s:.0f} of {budget:.0f} s"
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
