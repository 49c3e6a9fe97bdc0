"""Statistics and diagnosis of programs that use torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from ringreduce import cli
from ringreduce.diagnosis.ranks import found_here

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


PATIENCE = 200.0

GROUPS = """
import json, sys, time
from dataclasses import asdict
import torch, torch.distributed as dist
from ringreduce import diagnosis

dist.init_process_group("ringreduce")
rank = dist.get_rank()
pair = dist.new_group([2, 1])
x = torch.ones(10)
for _ in range(3):
    dist.all_reduce(x)
dist.all_reduce(x, async_op=True).wait()
if rank > 0:
    dist.broadcast(x, 1, group=pair)
mine = [asdict(one) for one in diagnosis.statistics()]
open(f"{sys.argv[1]}/{rank}.json", "w").write(json.dumps(mine))

def prepare_batch():
    time.sleep(3600)

if rank == 2:
    prepare_batch()
if rank > 0:
    dist.all_reduce(x, group=pair)
dist.barrier()
"""

BUCKETS = """
import sys, time
import torch, ringreduce

comm = ringreduce.init()
model = ringreduce.DataParallel(torch.nn.Linear(16, 16), comm)

def prepare_batch():
    time.sleep(3600)

for step in range(4):
    if comm.rank == 1 and step == 3:
        open(f"{sys.argv[1]}/1.json", "w").write("{}")
        prepare_batch()
    model(torch.ones(2, 16)).sum().backward()
    model.zero_grad()
    open(f"{sys.argv[1]}/0.json", "w").write("{}")
"""


@pytest.fixture
def start(tmp_path):
    """Starts a program on ranks, and ends them."""
    started = []

    def run(program, ranks):
        (tmp_path / "program.py").write_text(program)
        command = [
            sys.executable,
            "-m",
            "ringreduce",
            "run",
            "-n",
            str(ranks),
            tmp_path / "program.py",
            tmp_path,
        ]
        process = subprocess.Popen(command, start_new_session=True, stderr=(tmp_path / "errors").open("w"))
        started.append(process)
        return process

    yield run
    for process in started:
        for one in found_here():
            if str(tmp_path) in one.command:
                os.kill(one.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def pid_of(folder):
    return next((one.pid for one in found_here() if str(folder) in one.command and one.groups), None)


def said(capsys, folder, *parts):
    """What the command says of the job, once it says all of this."""
    until = time.monotonic() + PATIENCE
    text = ""
    while not all(part in text for part in parts):
        assert time.monotonic() < until, text + (folder / "errors").read_text()
        time.sleep(0.2)
        pid = pid_of(folder)
        if pid is not None:
            cli.main(["diagnose", "--pid", str(pid), "--longer-than", "0.2"])
            text = capsys.readouterr().out
    return text


def test_process_groups(start, tmp_path, capsys):
    start(GROUPS, 3)
    text = said(capsys, tmp_path, "ranks 1 and 2", "rank 1 waits for it")
    sentence = next(line for line in text.splitlines() if "rank 1 waits for it" in line)
    assert re.search(
        r"rank 2 has not called #2, all_reduce\(float32\[10\], sum\) by \w+ in the group of", sentence
    )
    assert "and is in prepare_batch at program.py:" in sentence
    whole, pairs = set(), set()
    for rank in range(3):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        world = next(one for one in found if one["size"] == 3)
        assert world["rank"] == rank and world["members"] == [0, 1, 2]
        counted = [one for one in world["calls"] if one["collective"] == "all_reduce"]
        assert sum(one["calls"] for one in counted) == 4 and sum(one["nbytes"] for one in counted) == 160
        whole.add(world["group"])
        for pair in (one for one in found if one["size"] == 2):
            assert pair["members"][pair["rank"]] == rank
            assert [(one["collective"], one["calls"], one["nbytes"]) for one in pair["calls"]] == [
                ("broadcast", 1, 40)
            ]
            pairs.add(pair["group"])
    assert len(whole) == len(pairs) == 1 and whole != pairs


def test_the_bucket_is_named(start, tmp_path, capsys):
    start(BUCKETS, 2)
    text = said(capsys, tmp_path, "rank 0 waits for it")
    assert re.search(r"rank 1 has not called #\d+, all_reduce\(float32\[\d+\], avg, bucket 0\) by", text), (
        text
    )
    assert "and is in prepare_batch at program.py:" in text
