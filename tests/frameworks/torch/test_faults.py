"""A rank dies, stays away or leaves: every other one gets an error that names it, and none hangs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.fault_ranks import BACKEND, Ranks
from tests.processes import python, within

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LARGE = 8 << 20


# --- calls inside a signal handler ------------------------------------------------------------------------------


def _handle(note, nested):
    """Rank 0 makes a call in a signal handler while it waits in another one."""
    said, rank = [], dist.get_rank()

    def handle(*_):
        try:
            nested()
        except RuntimeError as error:
            said.append(str(error))

    dist.barrier()
    if rank == 0:
        signal.signal(signal.SIGUSR1, handle)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        time.sleep(1)
    x = torch.ones(3)
    dist.all_reduce(x)
    if rank == 1 and nested is _submit_and_wait:
        nested()
    y = torch.ones(3)
    dist.all_reduce(y)
    return x.tolist() == y.tolist() == [2, 2, 2], said


def _nested():
    dist.all_reduce(torch.ones(2))


def _submit_and_wait():
    dist.all_reduce(torch.ones(2), async_op=True).wait()


@pytest.mark.parametrize(
    ("nested", "words"),
    [
        (
            _nested,
            "all_reduce was called by a signal handler while this thread waits in call #2, all_reduce(float32[3]",
        ),
        (
            _submit_and_wait,
            "a signal handler waits for an operation that cannot begin before the handler returns",
        ),
    ],
)
def test_a_call_in_a_signal_handler(tmp_path, nested, words):
    first, other = Ranks(tmp_path, _handle, 2, nested, timeout=100).outcomes()
    assert (other.kind, other.value) == ("", (True, [])), other
    well, (said,) = first.value
    assert well and words in said


# --- a rank is killed ------------------------------------------------------------------------------------------


def _train(note):
    """DDP until something fails."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(100_000):
        if step == 3:
            note()
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()


BLOCKED = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "large all_reduce": lambda x: dist.all_reduce(torch.ones(LARGE)),
    "work.wait": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "future.wait": lambda x: dist.all_reduce(x, async_op=True).get_future().wait(),
    "barrier": lambda x: dist.barrier(),
    "recv": lambda x: dist.recv(x, 1),
    "irecv": lambda x: dist.irecv(x, 1).wait(),
    "all_to_all": lambda x: dist.all_to_all_single(torch.empty(6), torch.ones(6)),
    "all_gather_object": lambda x: dist.all_gather_object([None] * 3, {"a": 1}),
}


def _block(note, call):
    """Ranks 0 and 2 wait in a call that rank 1, which will be killed, never makes."""
    x = torch.ones(4)
    dist.all_reduce(x)
    note()
    if dist.get_rank() == 1:
        time.sleep(60)
    BLOCKED[call](x)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killed_amid_ddp_training(victim, tmp_path):
    ranks = Ranks(tmp_path, _train, 3)
    ranks.wait_for_notes()
    time.sleep(0.1 + 0.017 * victim)
    ranks.kill(victim)
    ranks.assert_lost()


@pytest.mark.parametrize("call", BLOCKED)
def test_killed_while_others_wait(call, tmp_path):
    ranks = Ranks(tmp_path, _block, 3, call)
    ranks.wait_for_notes()
    time.sleep(0.2)  # past spinning
    ranks.kill(1)
    ranks.assert_lost()


def _block_in_subgroup(note):
    """Rank 2, the second of its group, dies while rank 1, the first, waits for it."""
    group = dist.new_group([1, 2])
    note()
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(4), group=group)
    time.sleep(60 if dist.get_rank() == 2 else 0)


def test_errors_of_a_subgroup_tell_the_rank_of_the_job(tmp_path):
    ranks = Ranks(tmp_path, _block_in_subgroup, 3)
    ranks.wait_for_notes()
    ranks.kill(2)
    _, waiting, _ = ranks.outcomes()
    assert waiting is not None and re.search("rank 2 died|rank 1 died .*1 is 2 globally", waiting.text), (
        waiting
    )


@pytest.mark.parametrize("call", ["all_reduce", "work.wait", "recv"])
def test_interrupted_while_waiting(call, tmp_path):
    """Ctrl-C ends a wait, and in a blocking collective the group, since this rank leaves it halfway."""
    ranks = Ranks(tmp_path, _block, 3, call)
    ranks.wait_for_notes()
    time.sleep(0.2)
    began = time.monotonic()
    os.kill(ranks.processes[0].pid, signal.SIGINT)
    time.sleep(1)
    ranks.kill(1)  # which would sleep on
    first, _, third = ranks.outcomes()
    assert first is not None and first.kind == "KeyboardInterrupt", first
    assert first.at - began < within()
    assert third is not None and ("rank 0 " if call == "all_reduce" else "rank 1 died") in third.text, third


def _elastic(tmp_path, *more):
    command = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2", str(EXAMPLES / "elastic.py")]
    options = ["--backend", BACKEND, "--json", "--steps", "12", "--folder", str(tmp_path), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    tmp_path.mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command, *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("{"))
    return json.loads(line)["losses"], run.stderr


@pytest.mark.slow
def test_torchrun_restarts_from_the_last_checkpoint(tmp_path):
    undisturbed, _ = _elastic(tmp_path / "undisturbed")
    resumed, said = _elastic(tmp_path / "resumed", "--die-at", "8")
    for rank in range(2):
        assert f"rank {rank} continues from step 5" in said
    assert len(resumed) == 12
    assert resumed == undisturbed


# --- a rank stays away -----------------------------------------------------------------------------------------


def _wait_of_group(limit):
    dist.all_reduce(torch.ones(8), group=dist.new_group(timeout=limit))


def _wait_of_work(limit):
    dist.all_reduce(torch.ones(8), async_op=True).wait(limit)


def _wait_of_options(limit):
    options = dist.AllreduceOptions()
    options.timeout = limit
    dist.group.WORLD.allreduce([torch.ones(8)], options).wait()


def _receive_of_group(limit):
    dist.recv(torch.ones(8), 1, group=dist.new_group(timeout=limit))


TIMEOUTS = {
    "group": _wait_of_group,
    "work.wait": _wait_of_work,
    "options": _wait_of_options,
    "recv": _receive_of_group,
}


def _stay_away(note, how):
    if dist.get_rank() == 1:
        if how in ("group", "recv"):
            dist.new_group()
        note()
        time.sleep(2)
        return 0.0, ""
    note()
    began = time.monotonic()
    try:
        TIMEOUTS[how](timedelta(seconds=0.8))
    except RuntimeError as error:
        return time.monotonic() - began, str(error)
    raise AssertionError("it did not time out")


@pytest.mark.parametrize("how", TIMEOUTS)
def test_timeout_names_the_rank_that_stays_away(how, tmp_path):
    found = Ranks(tmp_path, _stay_away, 3, how).outcomes()
    for rank in (0, 2):
        assert found[rank] is not None and found[rank].value, found[rank]
        took, text = found[rank].value
        assert "imed out" in text, text
        assert "waiting for rank 1" in text, text
        assert how == "recv" or ": rank 1 has not made this call, " in text, text
        assert 0.7 < took < within(0.8 + 1), took


def _stay_away_from_default_group(note):
    note()
    if dist.get_rank() == 1:
        time.sleep(2)
    else:
        dist.barrier()


def test_timeout_of_init_process_group(tmp_path):
    ranks = Ranks(tmp_path, _stay_away_from_default_group, 2, timeout=0.7)
    waiting, _ = ranks.outcomes()
    assert waiting is not None and "waiting for rank 1" in waiting.text, waiting
    assert 0.6 < waiting.at - ranks.notes[0] < within(0.7 + 1)


# --- a rank leaves ---------------------------------------------------------------------------------------------

# For each of sys.argv's scenarios forks ranks that run it to the interpreter's real end, and prints their exit codes.
FORK_RANKS = """
import json, os, signal, socket, sys, time
import torch, torch.distributed as dist

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])

def codes_of(children):
    ended, until = {}, time.monotonic() + 30
    while len(ended) < len(children):
        if time.monotonic() > until:
            for child in set(children) - set(ended):
                os.kill(child, signal.SIGKILL)
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ended[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [ended[child] for child in children]

def start(how):
    os.environ.update(WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    children = []
    for rank in range(3):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ["RANK"] = str(rank)
            os.dup2(os.open(f"{folder}/{how}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            return rank
    codes[how] = codes_of(children)

scenarios, backend, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
codes = {}
for how, lines in scenarios.items():
    rank = start(how)
    if rank is not None:
        torch.set_num_threads(1)
        dist.init_process_group(backend)
        x = torch.ones(4)
        dist.all_reduce(x)
        exec(lines)
        break
else:
    print(json.dumps(codes))
"""

LEAVING = {
    # The lines that each rank runs, and the ranks' exit codes.
    "destroy": ("dist.destroy_process_group()", [0, 0, 0]),
    "no destroy": ("pass", [0, 0, 0]),
    "works in flight": (
        "works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(4)]\n"
        "dist.destroy_process_group()",
        [0, 0, 0],
    ),
    "works in flight, no destroy": (
        "works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(4)]",
        None,  # those who come late may find the others gone, and nobody waits to be told
    ),
    "a work that the others never join": (
        "if rank == 0: work = dist.all_reduce(x, async_op=True)\ndist.destroy_process_group()",
        None,  # rank 0 may be told
    ),
    "exception": (
        "if rank == 1: raise ValueError('rank 1 has had enough')\ndist.all_reduce(x)",
        [1, 1, 1],
    ),
    "destroyed elsewhere": (
        "if rank == 1: dist.destroy_process_group(); time.sleep(2); sys.exit(7)\ndist.all_reduce(x)",
        [1, 7, 1],
    ),
    "exit in another thread's wait": (
        "import threading\n"
        "if rank == 1: time.sleep(1); sys.exit(7)\n"
        "threading.Thread(target=lambda: dist.all_reduce(x), daemon=True).start(); time.sleep(0.3)",
        [0, 7, 0],
    ),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Each scenario's exit codes, what its ranks wrote to stderr, and what all of them left in /dev/shm."""
    folder, before = tmp_path_factory.mktemp("left"), set(os.listdir("/dev/shm"))
    scenarios = json.dumps({how: lines for how, (lines, _) in LEAVING.items()})
    run = python("-c", FORK_RANKS, scenarios, BACKEND, folder, timeout=300, GLOO_SOCKET_IFNAME="lo")
    assert run.returncode == 0, run.stderr
    said = {how: (folder / how).read_text() for how in LEAVING}
    return json.loads(run.stdout), said, set(os.listdir("/dev/shm")) - before


@pytest.mark.slow
@pytest.mark.parametrize("how", LEAVING)
def test_leaving(how, left):
    codes, said = left[0][how], left[1][how]
    wanted = LEAVING[how][1]
    assert wanted is None or codes == wanted, said
    assert all(code >= 0 for code in codes), said  # ended by no signal: SIGKILL were a hang, SIGABRT a crash
    if how == "exception":
        assert "rank 1 has had enough" in said
        assert len(re.findall("Error: .*rank 1 ", said)) == 3, said  # its own, and what the two others say


@pytest.mark.slow
def test_nothing_is_left_in_shared_memory(left):
    assert not left[2]
