"""A rank dies, stays away or leaves: every other one gets an error that names it, and none hangs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.torch.fault_ranks import BACKEND, WITHIN, Ranks, names_lost

pytestmark = pytest.mark.timeout(60)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LARGE = 8 << 20


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


def test_errors_of_a_subgroup_name_the_rank_of_the_job(tmp_path):
    ranks = Ranks(tmp_path, _block_in_subgroup, 3)
    ranks.wait_for_notes()
    ranks.kill(2)
    _, waiting, _ = ranks.outcomes()
    assert names_lost(waiting, 2), waiting


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
        timeout=55,
    )
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("{"))
    return json.loads(line)["losses"], run.stderr


def test_torchrun_restarts_from_the_last_checkpoint(tmp_path):
    undisturbed, _ = _elastic(tmp_path / "undisturbed")
    resumed, said = _elastic(tmp_path / "resumed", "--die-at", "8")
    for rank in range(2):
        assert f"rank {rank} goes on from step 5" in said
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
        assert 0.7 < took < 0.8 + WITHIN, took


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
    assert 0.6 < waiting.at - ranks.notes[0] < 0.7 + WITHIN


# --- a rank leaves ---------------------------------------------------------------------------------------------

# Forks ranks of which each runs a script to the interpreter's real end; prints each one's exit status.
FORK_RANKS = """
import os, sys, time
import torch, torch.distributed as dist
children = {}
for rank in range(int(os.environ["WORLD_SIZE"])):
    child = os.fork()
    if child == 0:
        break
    children[child] = rank
else:
    ended = {}
    for _ in children:
        child, status = os.wait()
        ended[children[child]] = os.waitstatus_to_exitcode(status)
    print("ended", [ended[rank] for rank in sorted(ended)], flush=True)
    os._exit(0)
os.environ["RANK"] = str(rank)
torch.set_num_threads(1)
dist.init_process_group(sys.argv[1])
x = torch.ones(4)
dist.all_reduce(x)
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


@pytest.mark.parametrize("how", LEAVING)
def test_leaving(how):
    lines, codes = LEAVING[how]
    before = set(os.listdir("/dev/shm"))
    environment = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    run = subprocess.run(
        [sys.executable, "-c", FORK_RANKS + lines, BACKEND],
        capture_output=True,
        text=True,
        env={**environment, "GLOO_SOCKET_IFNAME": "lo"},
        timeout=40,
    )
    ended = json.loads(re.search(r"ended (\[.*\])", run.stdout)[1])
    assert codes is None or ended == codes, run.stderr
    assert all(code >= 0 for code in ended), run.stderr  # no signal, such as an abort's
    assert "terminate called" not in run.stderr, run.stderr
    if codes == [1, 1, 1]:
        assert "rank 1 has had enough" in run.stderr
        assert run.stderr.count("rank 1 ") >= 3, run.stderr  # what the two others say
    assert set(os.listdir("/dev/shm")) <= before


def _free_port() -> str:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
