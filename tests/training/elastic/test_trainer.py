"""The trainer with --elastic, started again by its launcher after a rank was killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before processes are forked

import ringreduce
from ringreduce import elastic
from ringreduce.balance import equal_shares
from ringreduce.elastic.elastic_group import ElasticGroup
from ringreduce.elastic.runs import checkpoints_in
from ringreduce.train.config import Config, ConfigError, replace
from ringreduce.train.data import ShardedSampler
from ringreduce.train.trainer import Trainer
from ringreduce.train.training_log import Progress
from ringreduce.train.training_run import _steps
from tests.conftest import slowly
from tests.training.elastic.ranks import Job, kill_self
from tests.training.elastic.training import DYING

ROOT = Path(__file__).resolve().parents[3]
GPT = (
    "--layers", "1", "--heads", "1", "--width", "16", "--context", "16", "--text-bytes", "1000000", "--batch", "8",
    "--evaluate-samples", "24", "--evaluate-every", "20", "--log-every", "1", "--schedule", "constant",
    "--timeout", "60", "--threads", "1",
)  # fmt: skip


DILOCO = ("--low-communication", "diloco", "--local-steps", "10")
KINDS = {
    "replicated": (),
    "sharded": ("--sharded-optimizer", "2"),
    "diloco": DILOCO,
    "balance": ("--balance",),
}


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
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_rank_comes_back(kind, tmp_path):
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
        sys.executable, "-m", "ringreduce.train", *GPT, *files, *KINDS[kind], "--elastic", "2", "--steps", "1500",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: log.exists() and len(rows_of(log)) > 30, job)
        os.kill(ranks_of(job)[0], signal.SIGKILL)  # rank 0, which writes the log
        _, err = job.communicate(timeout=200)
    finally:
        job.kill()
    assert job.returncode == 0, err
    steps = [row["step"] for row in rows_of(log) if "loss" in row]
    assert steps == sorted(steps) and len(steps) == len(set(steps))
    # A loss may cut a report off.
    assert len(steps) * (10 if "--low-communication" in KINDS[kind] else 1) >= 1500 - 30
    assert rows_of(log)[-1]["validation_loss"] < 4
    assert "started again" in err or "starting it again" in err
    assert [path.name[:13] for path in checkpoints_in(folder)] == ["step-00001450", "step-00001500"]


SMALL = Config(
    layers=1, heads=2, width=16, context=16, text_bytes=1 << 20, batch=12, steps=24, warmup=0, schedule="constant",
    evaluate_samples=16, evaluate_every=12, log_every=1, threads=1, timeout=30, elastic=3,
)  # fmt: skip
FATAL = 10  # the step in which a rank dies


def trained(me, config, slow=-1, agrees=False):
    """Trains on a process. The second one dies, and those after the third come when it has.

    agrees: whether it dies in the agreement. The others then apply the step.
    """

    def die(*_):
        me.note(DYING)
        kill_self()

    torch.set_num_threads(1)
    if me.number >= me.members:
        os.environ["RINGREDUCE_NEWCOMER"] = "yes"
        me.wait_for(1, DYING)
    comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
    trainer, seen = Trainer(config, comm), []
    learn = trainer._learn

    def disturbed():
        seen.append((trainer.done, trainer.comm.size, trainer.balance and trainer.balance.shares))
        if me.number == 1 and trainer.done == FATAL:
            if not agrees:
                die()
            ElasticGroup.commit = die
        return learn()

    trainer._learn = disturbed
    if trainer.balance:  # real times would depend on what else the cores do
        pace, end = 3.0 if me.number == slow else 1.0, trainer.balance.step
        trainer.balance.step = lambda _: end(pace * trainer.balance.shares[trainer.comm.rank])
    with Progress(config, me.number == 0, 0) as progress:
        _steps(trainer, progress)
    parameters = trainer.outer._last() if trainer.outer else [*trainer.module.parameters()]
    return {
        "rows": progress.rows,
        "parameters": [each.detach().clone() for each in parameters],
        "rate": trainer.optimizer.param_groups[0]["lr"],
        "seen": seen,
    }


def rows(found, name="loss"):
    return {row["step"]: row[name] for row in found["rows"] if name in row}


def trained_with_a_loss(config, **more):
    run = partial(trained, config=config, **more)
    values = Job(run, 3, run, 1).values(but=(1,))
    for found in (values[2], values[3]):
        for ours, theirs in zip(found["parameters"], values[0]["parameters"], strict=True):
            assert torch.equal(ours, theirs)
        assert found["rate"] == values[0]["rate"]
    return values


def losses_alone(comm):
    trainer = Trainer(replace(SMALL, elastic=0), comm)
    return {number + 1: trainer.step().losses[0] for number in range(SMALL.steps)}


@pytest.mark.parametrize("agrees", [False, *slowly(True)])
def test_balanced_shares_follow_the_ranks(agrees):
    """Which rank has which samples changes nothing: the losses are those of one process."""
    config = replace(SMALL, balance=True, balance_every=3)
    values = trained_with_a_loss(config, slow=2, agrees=agrees)
    expected = ringreduce.run(losses_alone, 1)[0]
    if agrees:
        del expected[FATAL + 1]  # the report of a step in which a rank was lost
    assert rows(values[0]) == pytest.approx(expected, rel=1e-4)
    for number in (0, 2, 3):
        seen = values[number]["seen"]
        assert all(len(shares) == size and sum(shares) == SMALL.batch for _, size, shares in seen)
        # The slow rank keeps a small share, and is now the second one.
        after = [shares for step, _, shares in seen if step > FATAL]
        assert all(shares[1] == min(shares) < SMALL.batch // len(shares) for shares in after)
    assert [step for step, *_ in values[3]["seen"]] == [*range(FATAL + agrees, SMALL.steps)]


@pytest.mark.parametrize("agrees", [*slowly(False), True])
@pytest.mark.parametrize("method", [*slowly("local_sgd"), "diloco", "streaming_diloco"])
def test_low_communication_goes_on_in_rounds(method, agrees):
    config = replace(
        SMALL, low_communication=method, local_steps=4, schedule="cosine", warmup=4, overlap=2, steps=22
    )
    values = trained_with_a_loss(config, agrees=agrees)
    reported = [4, 8, 12, 16, 20, 22]
    steps = [step for step, *_ in values[0]["seen"]]
    applied = len(steps) == 22
    # With streaming it depends on whether the others had all that they needed of the dead rank.
    assert applied == agrees or method == "streaming_diloco"
    if applied:
        del reported[2]
        first = 12
    else:
        first = 8  # the round is made again
    assert [*rows(values[0])] == reported
    assert 22 in rows(values[0], "validation_loss")
    assert rows(values[0])[22] < rows(values[0])[4]
    assert steps[-(22 - first) :] == [*range(first, 22)] == [step for step, *_ in values[3]["seen"]]


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError, match="trace: a timeline needs the same ranks"):
        Config(elastic=1, trace="x")
    with pytest.raises(ConfigError, match="logical_shards: cannot be divided among any number"):
        Config(elastic=1, logical_shards=4)
    with pytest.raises(ConfigError, match="parameter_server: survives losses by itself"):
        Config(elastic=1, parameter_server=True)
    with pytest.raises(ConfigError, match="resume: with elastic it must be auto"):
        Config(elastic=1, resume="x.pt")


def test_unequal_parts_of_a_batch():
    shares = equal_shares(8, 3)
    parts = [next(iter(ShardedSampler(100, 8, rank, 3, shares=lambda number: shares))) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 3, 2]
    assert [each for part in parts for each in part] == next(iter(ShardedSampler(100, 8)))
    with pytest.raises(ConfigError, match="batch: 8 is not a multiple of 3 ranks"):
        ShardedSampler(100, 8, 0, 3)
