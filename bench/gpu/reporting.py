"""A pytest plugin: writes a line of JSON as each test begins and ends, and leaves out tests that are done.

RINGREDUCE_VISIT_RESULTS=FILE RINGREDUCE_VISIT_DONE=FILE python3 -m pytest -p reporting ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from record import append, results

RESULTS = results()
DONE = Path(os.environ["RINGREDUCE_VISIT_DONE"])
# Errors after which a process cannot use CUDA any more: those of a kernel that has crashed.
STICKY = re.compile(
    r"cudaError(Illegal|Launch|Misaligned|InvalidAddressSpace|InvalidPc|HardwareStack|Assert|ECC|Unknown)"
    r"|CUDA error: (an illegal|unspecified launch|misaligned)"
)


class Test:
    """What its phases have come to so far."""

    seconds, outcome, why, is_last = 0.0, "passed", "", False


test = Test()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = set(DONE.read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collection_finish(session: pytest.Session) -> None:
    append(RESULTS, collected=len(session.items))


def pytest_runtest_logstart(nodeid: str) -> None:
    global test
    test = Test()
    append(RESULTS, begin=nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    test.seconds += report.duration
    if report.skipped and test.outcome == "passed":
        test.outcome, test.why = "skipped", str(report.longrepr[2] if report.longrepr else "")
    elif report.failed and test.outcome not in ("failed", "wrong"):
        is_wrong = call.when == "call" and call.excinfo and call.excinfo.errisinstance(AssertionError)
        test.outcome = "wrong" if is_wrong else "failed"
        test.why = call.excinfo.exconly()[:300] if call.excinfo else ""
        if call.excinfo and STICKY.search(call.excinfo.exconly()):
            test.is_last, item.session.shouldstop = True, "this process cannot use CUDA any more"


def pytest_runtest_logfinish(nodeid: str) -> None:
    append(RESULTS, test=nodeid, outcome=test.outcome, seconds=round(test.seconds, 2), why=test.why)
    if test.is_last:
        append(RESULTS, restart=nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        append(RESULTS, test=report.nodeid, outcome="failed", seconds=0, why=str(report.longrepr)[-300:])
    elif report.skipped:
        append(RESULTS, test=report.nodeid, outcome="skipped", seconds=0, why=str(report.longrepr[2]))
