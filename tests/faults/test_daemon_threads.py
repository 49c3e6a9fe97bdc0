"""A daemon thread is inside a call when its interpreter ends: the process ends with the program's own status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import slow_rows, slowly

pytestmark = pytest.mark.timeout(400)
PATIENCE = 300  # seconds for all runs of a test
RUNS = 10

# Forks pairs of ranks, each of which ends as an interpreter does, and prints their exit statuses. A thread of rank 0
# waits for a call of rank 1 that never comes, or both make calls as fast as they can.
PAIRS = """
import os, random, sys, threading, time
import numpy as np
import ringreduce
from ringreduce import errors

call, ending, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
statuses = []
for run in range(runs):
    ranks = [0, 1]
    children = []
    for rank in ranks:
        children.append(os.fork())
        if children[-1] == 0:
            break
    else:
        statuses += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        continue
    random.seed(2 * run + rank)
    name = f"daemon/{os.getppid()}/{run}"
    comm = ringreduce.init(rank, 2, name, timeout=60)
    x = np.ones(1 << 18, "float32")
    calls_of_one = {
        "all_reduce": lambda: comm.all_reduce(x),
        "small all_reduce": lambda: comm.all_reduce(x[:2]),
        "not contiguous": lambda: comm.all_reduce(x[::2]),
        "wait": lambda: comm.all_reduce(x, async_op=True).wait(),
        "wait with a timeout": lambda: comm.recv(x, 1, async_op=True).wait(50),
        "barrier": comm.barrier,
        "recv": lambda: comm.recv(x, 1),
        "send": lambda: comm.send(x, 1),
        "all_gather_object": lambda: comm.all_gather_object({"a": 1}),
        "split": lambda: comm.split(0),
        "shrink": comm.shrink,
        "init": lambda: ringreduce.init(0, 2, f"{name}/alone", timeout=60),
        "guest": lambda: ringreduce.init(1, 2, f"{name}/alone", timeout=60),
    }
    calls = {
        **calls_of_one,
        "calls of both": lambda: comm.all_reduce(x[:64]),
        "calls of both, not contiguous": lambda: comm.all_reduce(x[:64:2]),
        "refused calls": lambda: comm.all_reduce(x, "no op"),
    }
    began = threading.Event()

    def forever():
        while True:
            began.set()
            try:
                calls[call]()
            except (ValueError, errors.Error):
                if call in calls_of_one:
                    raise

    if rank == 0 or call not in calls_of_one:
        threading.Thread(target=forever, daemon=True).start()
        began.wait()
    # The thread's own error. A thread that prints while Python ends aborts the process whatever it has called.
    threading.excepthook = lambda what: None
    time.sleep(random.random() * 0.03)
    if ending == "exception":
        raise RuntimeError("the end")
    sys.exit(3 if ending == "exit" else 0)
print(statuses)
"""


def statuses_of(call: str, ending: str, runs: int) -> tuple[list[int], str]:
    """The exit statuses of all ranks, and what was said on stderr."""
    words = [sys.executable, "-c", PAIRS, call, ending, str(runs)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


CALLS = [
    "calls of both",
    *slowly(
        "init",
        "all_reduce",
        "calls of both, not contiguous",
        "small all_reduce",
        "not contiguous",
        "wait",
        "wait with a timeout",
        "barrier",
        "recv",
        "send",
        "split",
        "all_gather_object",
        "shrink",
        "guest",
        "refused calls",
    ),
]


@pytest.mark.parametrize("call", CALLS)
def test_the_interpreter_ends_while_a_daemon_thread_is_in(call):
    found, said = statuses_of(call, "end", RUNS)
    assert found == [0] * (2 * RUNS), said
    assert "terminate" not in said and "FATAL" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "status"), [*slow_rows(("exit", 3)), ("exception", 1)])
def test_the_status_is_the_programs_own(ending, status):
    found, said = statuses_of("all_reduce", ending, RUNS)
    assert found == [status] * (2 * RUNS), said
