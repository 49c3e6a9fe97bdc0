"""The trainer with --elastic, started again by its launcher after a rank was killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from ringreduce.balance import equal_shares
from ringreduce.train.config import Config, ConfigError
from ringreduce.train.data import ShardedSampler

ROOT = Path(__file__).resolve().parents[2]
GPT = (
    "--layers", "1", "--heads", "1", "--width", "16", "--context", "16", "--text-bytes", "1000000", "--batch", "8",
    "--evaluate-samples", "24", "--evaluate-every", "20", "--log-every", "1", "--schedule", "constant",
    "--timeout", "60", "--threads", "1",
)  # fmt: skip


def rows_of(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def ranks_of(job):
    """The processes of a launcher."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return [int(pid) for pid in children]


def wait_until(holds, job):
    until = time.monotonic() + 90
    while not holds():
        assert job.poll() is None, job.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("more", [(), ("--sharded-optimizer", "2")], ids=["replicated", "sharded"])
def test_a_killed_rank_comes_back(more, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "checkpoints"
    files = (
        "--json-log",
        str(log),
        "--checkpoints",
        str(folder),
        "--checkpoint-every",
        "50",
        "--resume",
        "auto",
    )
    command = [
        sys.executable, "-m", "ringreduce", "run", "-n", "3", "--restarts", "3",
        sys.executable, "-m", "ringreduce.train", *GPT, *files, *more, "--elastic", "2", "--steps", "1500",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: log.exists() and len(rows_of(log)) > 30, job)
        os.kill(ranks_of(job)[0], signal.SIGKILL)  # rank 0, which writes the log
        _, err = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode == 0, err
    steps = [row["step"] for row in rows_of(log) if "loss" in row]
    assert steps == sorted(steps) and len(steps) == len(set(steps))
    assert len(steps) >= 1500 - 3  # a loss may cut a report off
    assert rows_of(log)[-1]["validation_loss"] < 4
    assert "started again" in err or "starting it again" in err
    assert sorted(path.name for path in folder.iterdir()) == ["step-00001450", "step-00001500"]


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError, match="trace: a timeline needs the same ranks"):
        Config(elastic=1, trace="x")
    with pytest.raises(ConfigError, match="logical_shards: cannot be divided among any number"):
        Config(elastic=1, logical_shards=4)
    with pytest.raises(ConfigError, match="parameter_server: survives losses by itself"):
        Config(elastic=1, parameter_server=True)
    with pytest.raises(ConfigError, match="balance: needs the same ranks"):
        Config(elastic=1, balance=True)
    with pytest.raises(ConfigError, match="low_communication: needs the same ranks"):
        Config(elastic=1, low_communication="diloco")
    with pytest.raises(ConfigError, match="resume: with elastic it must be auto"):
        Config(elastic=1, resume="x.pt")


def test_unequal_parts_of_a_batch():
    shares = equal_shares(8, 3)
    parts = [next(iter(ShardedSampler(100, 8, rank, 3, shares=lambda number: shares))) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 3, 2]
    assert [each for part in parts for each in part] == next(iter(ShardedSampler(100, 8)))
    with pytest.raises(ConfigError, match="batch: 8 is not a multiple of 3 ranks"):
        ShardedSampler(100, 8, 0, 3)
