"""How a process ends whose process groups still have something to do, and what its peers hear of it."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.conftest import slowly
from tests.processes import python

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(1000)
PATIENCE = 950  # seconds; ten times eight processes with torch need 40 of one core
RUNS = 5

# Forks ranks that run the lines up to the interpreter's real end, and prints their exit statuses. What rank 0 has
# registered before torch was imported runs last: it waits until the other ranks have ended.
RANKS = """
import atexit, json, os, random, signal, socket, sys, tempfile, threading, time
folder, ended = tempfile.mkdtemp(), {}

def slow_hook():
    until = time.monotonic() + 60
    while slow and rank == 0 and time.monotonic() < until:
        if all(os.path.exists(f"{folder}/{run}/{other}") for other in range(1, world)):
            return
        time.sleep(0.01)
    if slow and rank == 0:
        os._exit(9)

slow = False
atexit.register(slow_hook)
import torch, torch.distributed as dist
torch.set_num_threads(1)
lines, world, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
statuses = []
for run in range(runs):
    os.mkdir(f"{folder}/{run}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = "tcp://127.0.0.1:%d" % probe.getsockname()[1]  # of a store that rank 0 holds
    children = []
    for rank in range(world):
        children.append(os.fork())
        if children[-1] == 0:
            break
    else:
        for _ in children:
            child, status = os.wait()
            ended[child] = os.waitstatus_to_exitcode(status)
            open(f"{folder}/{run}/{children.index(child)}", "w").close()
        statuses.append([ended[child] for child in children])
        continue
    random.seed(world * run + rank)
    dist.init_process_group("ringreduce", init_method=place, rank=rank, world_size=world)
    x = torch.ones(1 << 16)

    def in_daemon(call):
        began = threading.Event()
        def run():
            began.set()
            call()
        threading.Thread(target=run, daemon=True).start()
        began.wait()
        threading.excepthook = lambda what: None  # a thread that prints while Python ends aborts the process
        time.sleep(random.random() * 0.03)

    exec(lines)
    break
else:
    print(json.dumps(statuses))
"""


def statuses_of(lines: str, world: int = 2, runs: int = RUNS) -> tuple[list[list[int]], str]:
    """The exit statuses of the ranks of each run, and what was said on stderr."""
    run = python("-c", RANKS, lines, world, runs, timeout=PATIENCE, GLOO_SOCKET_IFNAME="lo")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


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
def test_the_interpreter_ends_while_a_daemon_thread_is_in(call):
    found, said = statuses_of(f"if rank == 0: in_daemon(lambda: {CALLS[call]})")
    assert found == [[0, 0]] * RUNS, said


def test_the_interpreter_ends_while_daemon_threads_make_calls():
    lines = "in_daemon(lambda: [dist.all_reduce(torch.ones(16)) for _ in range(10**9)])"
    found, said = statuses_of(lines)
    assert found == [[0, 0]] * RUNS, said


# --- callbacks ---------------------------------------------------------------------------------------------------

SLOW_CALLBACK = """
def callback(future):
    time.sleep(2.5)
    os._exit(5)

dist.all_reduce(x, async_op=True).get_future().then(callback)
"""


def test_a_callback_that_runs_at_the_end_runs_to_its_own_end():
    found, said = statuses_of(SLOW_CALLBACK, runs=2)
    assert found == [[5, 5]] * 2, said


def test_a_callback_of_a_call_that_never_ends_hears_of_the_end():
    lines = "if rank == 0: dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.wait())"
    found, said = statuses_of(lines)
    assert found == [[0, 0]] * RUNS, said


# --- what peers hear -----------------------------------------------------------------------------------------------


ENDS = {"exception": ("raise ValueError('enough')", 1), "exit": ("sys.exit(3)", 3), "end": ("pass", 0)}


@pytest.mark.parametrize("how", ["exception", *slowly("exit", "end")])
def test_peers_hear_of_the_end_before_other_hooks_run(how):
    ends, status = ENDS[how]
    found, said = statuses_of(
        f"slow = True\nif rank == 0:\n  {ends}\nelse:\n  dist.all_reduce(x)", world=3, runs=2
    )
    assert found == [[status, 1, 1]] * 2, said


def test_every_group_is_left():
    lines = "slow = True; pair = dist.new_group([0, 1])\nif rank == 0: raise ValueError\ndist.all_reduce(x, group=pair)"
    found, said = statuses_of(lines, runs=2)
    assert found == [[1, 1]] * 2, said


# --- the rank that holds torch's store -------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [3, *slowly(4, 8)])
def test_all_ranks_meet_although_the_one_with_the_store_ends_at_once(world):
    runs = RUNS if world == 3 else 2 * RUNS
    lines = "if rank: time.sleep(0.01 * random.random())"
    found, said = statuses_of(lines, world, runs)
    assert found == [[0] * world] * runs, said


def test_all_ranks_meet_although_another_ends_at_once():
    found, said = statuses_of("if rank == 2: os._exit(0)", 4)
    assert found == [[0] * 4] * RUNS, said
