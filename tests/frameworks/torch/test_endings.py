"""How a process ends whose process groups still have something to do, and what its peers hear of it."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile

import pytest

from tests.conftest import slowly
from tests.processes import ROOT

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

PATIENCE = 250  # seconds
# For each line of stdin, which has lines of Python, a world and a number of runs, forks ranks that run the lines up to
# the interpreter's real end, and prints their exit statuses. What rank 0 has registered before torch was imported runs
# last: it waits until the other ranks have ended.
RANKS = """
import atexit, json, os, random, signal, socket, sys, tempfile, threading, time

def slow_hook():
    until = time.monotonic() + 60
    while slow and rank == 0 and time.monotonic() < until:
        if all(os.path.exists(f"{folder}/{run}-{other}") for other in range(1, world)):
            return
        time.sleep(0.01)
    if slow and rank == 0:
        os._exit(9)

slow = False
atexit.register(slow_hook)
import torch, torch.distributed as dist
from tests.settled import settle
torch.set_num_threads(1)
settle()

def statuses():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = "tcp://127.0.0.1:%d" % probe.getsockname()[1]  # of a store that rank 0 holds
    children, ended = [], {}
    for rank in range(world):
        children.append(os.fork())
        if children[-1] == 0:
            return rank, place
    for _ in children:
        child, status = os.wait()
        ended[child] = os.waitstatus_to_exitcode(status)
        open(f"{folder}/{run}-{children.index(child)}", "w").close()
    return [ended[child] for child in children]

def as_rank():
    global folder, lines, world, run
    for asked in sys.stdin:
        folder, found = tempfile.mkdtemp(), []
        lines, world, runs = json.loads(asked)
        for run in range(runs):
            found.append(statuses())
            if isinstance(found[-1], tuple):
                return found[-1]
        print(json.dumps(found), flush=True)
    sys.exit()

def in_daemon(call):
    began = threading.Event()
    def run():
        began.set()
        call()
    threading.Thread(target=run, daemon=True).start()
    began.wait()
    threading.excepthook = lambda what: None  # a thread that prints while Python ends aborts the process
    time.sleep(random.random() * 0.03)

rank, place = as_rank()
random.seed(world * run + rank)
dist.init_process_group("ringreduce", init_method=place, rank=rank, world_size=world)
x = torch.ones(1 << 16)
exec(lines)
"""


@pytest.fixture(scope="module")
def server():
    """A process that runs RANKS, and the file that its ranks' errors go to."""
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            [sys.executable, "-c", RANKS], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
        ) as process,
    ):  # fmt: skip
        yield process, said
        process.kill()


@pytest.fixture(params=[2, *slowly(5)])
def check(request, server):
    """A function that runs lines on ranks several times, and compares the exit statuses."""
    process, said = server

    def check(lines: str, statuses: list[int], runs: int = request.param) -> None:
        said.seek(0)
        said.truncate()
        print(json.dumps([lines, len(statuses), runs]), file=process.stdin, flush=True)
        answered, _, _ = select.select([process.stdout], [], [], PATIENCE)
        answer = process.stdout.readline() if answered else ""
        said.seek(0)
        assert answer, said.read()
        assert json.loads(answer) == [statuses] * runs, said.read()

    return check


# --- daemon threads ----------------------------------------------------------------------------------------------

CALLS = {
    "all_reduce": "dist.all_reduce(x)",
    "work.wait": "dist.all_reduce(x, async_op=True).wait()",
    "future.wait": "dist.all_reduce(x, async_op=True).get_future().wait()",
    "recv": "dist.recv(x, 1)",
    "barrier": "dist.barrier()",
    "monitored_barrier": "dist.monitored_barrier(wait_all_ranks=True)",
    "all_gather_object": "dist.all_gather_object([None] * 2, {'a': 1})",
    "new_group": "dist.new_group([0, 1])",
}


OTHERS = [call for call in CALLS if call not in ("all_reduce", "future.wait")]


@pytest.mark.parametrize("call", ["all_reduce", "future.wait", *slowly(*OTHERS)])
def test_the_interpreter_ends_while_a_daemon_thread_is_in(call, check):
    check(f"if rank == 0: in_daemon(lambda: {CALLS[call]})", [0, 0])


def test_the_interpreter_ends_while_daemon_threads_make_calls(check):
    check("in_daemon(lambda: [dist.all_reduce(torch.ones(16)) for _ in range(10**9)])", [0, 0])


# --- callbacks ---------------------------------------------------------------------------------------------------

SLOW_CALLBACK = """
def callback(future):
    time.sleep(2.5)
    os._exit(5)

dist.all_reduce(x, async_op=True).get_future().then(callback)
"""


def test_a_callback_that_runs_at_the_end_runs_to_its_own_end(check):
    check(SLOW_CALLBACK, [5, 5], runs=2)


@pytest.mark.slow
def test_a_callback_of_a_call_that_never_ends_hears_of_the_end(check):
    wait = "dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.wait())"
    check(f"if rank == 0: {wait}", [0, 0])


# --- what peers hear -----------------------------------------------------------------------------------------------


ENDS = {"exception": ("raise ValueError('enough')", 1), "exit": ("sys.exit(3)", 3), "end": ("pass", 0)}


@pytest.mark.parametrize("how", ["exception", *slowly("exit", "end")])
def test_peers_hear_of_the_end_before_other_hooks_run(how, check):
    ends, status = ENDS[how]
    check(f"slow = True\nif rank == 0:\n  {ends}\nelse:\n  dist.all_reduce(x)", [status, 1, 1], runs=2)


@pytest.mark.slow
def test_every_group_is_left(check):
    lines = "slow = True; pair = dist.new_group([0, 1])\nif rank == 0: raise ValueError\ndist.all_reduce(x, group=pair)"
    check(lines, [1, 1], runs=2)


# --- the rank that holds torch's store -------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [3, *slowly(4, 8)])
def test_all_ranks_meet_although_the_one_with_the_store_ends_at_once(world, check):
    check("if rank: time.sleep(0.01 * random.random())", [0] * world)


@pytest.mark.slow
def test_all_ranks_meet_although_another_ends_at_once(check):
    check("if rank == 2: os._exit(0)", [0] * 4)
