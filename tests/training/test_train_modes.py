"""The trainer with low communication, and with ranks of unequal speed."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest

if None in map(importlib.util.find_spec, ("torch", "sklearn")):
    pytest.skip("torch or scikit-learn is not installed", allow_module_level=True)

import sklearn.datasets  # noqa: F401  # here, and not anew in every forked rank
import torch

import ringreduce
from ringreduce.train import checkpoint
from ringreduce.train.__main__ import main
from ringreduce.train.config import Config, ConfigError, replace
from ringreduce.train.trainer import Trainer
from ringreduce.train.training_log import make_row
from tests.conftest import slow_rows, slowly
from tests.training.test_train import DIGITS, GPT, _bytes_of, on_ranks, same_bits

LOW = {
    "local_sgd": {"low_communication": "local_sgd", "local_steps": 4},
    "post_local": {"low_communication": "local_sgd", "local_steps": 4, "synchronous_steps": 3},
    "diloco": {"low_communication": "diloco", "local_steps": 4, "wire": "bf16"},
    "streaming": {"low_communication": "streaming_diloco", "local_steps": 4, "fragments": 2, "wire": "int8"},
}
ALL = pytest.mark.parametrize("mode", LOW)


# --- low communication ---------------------------------------------------------------------------------------


def test_synchronising_in_every_step_trains_as_exchanging_gradients_does():
    config = replace(GPT, optimizer="sgd", clip=0.0, learning_rate=0.05)
    low = replace(config, low_communication="local_sgd", local_steps=1)
    found, expected = on_ranks(2, low)[0], on_ranks(2, config)[0]
    for name in ("loss", "validation_loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    apart = on_ranks(2, replace(low, local_steps=8))[0]
    assert apart["loss"] != pytest.approx(expected["loss"], rel=1e-4)


@ALL
def test_the_loss_falls_and_is_the_same_on_all_ranks(mode):
    found = on_ranks(2, replace(GPT, **LOW[mode]))
    assert found[0]["loss"] == found[1]["loss"]
    assert found[0]["loss"][-1] < 0.95 * found[0]["loss"][0]
    assert found[0]["validation_loss"] == found[1]["validation_loss"]


def test_digits_have_batch_norm_of_their_own_ranks():
    found = on_ranks(2, replace(DIGITS, **LOW["local_sgd"]))[0]
    assert found["loss"][-1] < 0.95 * found["loss"][0]


@pytest.mark.parametrize("mode", ["diloco", *slowly("local_sgd", "post_local"), *slowly("streaming")])
@pytest.mark.parametrize("stop", [*slowly(4), 6])
def test_going_on_gives_the_same_bits(mode, stop):
    config = replace(GPT, dropout=0.1, **LOW[mode])
    whole = on_ranks(2, config)[0]
    saved = on_ranks(2, config, until=stop)[0]
    again = on_ranks(2, config, saved["state"])[0]
    assert saved["loss"] + again["loss"] == whole["loss"]
    assert same_bits(again["state"], whole["state"])


@pytest.mark.slow
def test_going_on_with_more_ranks_or_without_low_communication():
    config = replace(GPT, **LOW["diloco"])
    saved = on_ranks(2, config, until=4)[0]["state"]
    for ranks, other in ((4, config), (2, GPT)):
        again = on_ranks(ranks, other, saved)[0]
        assert len(again["loss"]) == 4
        assert again["loss"][-1] < again["loss"][0]


@pytest.mark.parametrize("mode", ["diloco", *slowly("streaming")])
def test_low_communication_may_begin_with_a_synchronous_run(mode):
    saved = on_ranks(2, GPT, until=4)[0]
    again = on_ranks(2, replace(GPT, **LOW[mode]), saved["state"], until=4)[0]
    assert again["validation_loss"] == saved["validation_loss"]  # the anchors are the loaded parameters


def test_going_on_with_another_method_is_refused():
    config = replace(GPT, **LOW["diloco"])
    saved = on_ranks(1, config, until=1)[0]["state"]
    with pytest.raises(Exception, match="saved is the state of DiLoCo, not of LocalSGD") as caught:
        on_ranks(1, replace(GPT, **LOW["local_sgd"]), saved)
    assert isinstance(caught.value.__cause__, ConfigError)


def test_a_slower_rank_skips_steps_and_the_run_goes_on():
    config = replace(GPT, adaptive_steps=True, low_communication="local_sgd", local_steps=4)

    def train(comm, config):
        torch.set_num_threads(1)
        trainer = Trainer(config, comm)
        trainer.outer._pace.steps = [4, 2]
        learned = 0
        learn = trainer._learn

        def count():
            nonlocal learned
            learned += 1
            return learn()

        trainer._learn = count
        rows = [make_row(trainer, [trainer.step()]) for _ in range(4)]
        return trainer.done, learned, [row["loss"] for row in rows], trainer.evaluate()["validation_loss"]

    (done, first, losses, loss), (_, second, _, other) = ringreduce.run(train, 2, config, timeout=100)
    assert (done, first, second) == (4, 4, 2)
    assert all(map(torch.isfinite, torch.tensor(losses)))
    assert loss == other


# --- unequal ranks -------------------------------------------------------------------------------------------


def unequal(comm: Any, config: Config, shares: list[int], steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    trainer = Trainer(config, comm)
    trainer.balance._plan = [(0, shares)]
    trainer._go_to(0)
    rows = [make_row(trainer, [trainer.step()]) for _ in range(steps)]
    return {"loss": [row["loss"] for row in rows], "norm": [row["gradient_norm"] for row in rows]}


@pytest.mark.parametrize(
    ("more", "shares"), [({}, [5, 3]), *slow_rows(({"accumulation": 2}, [2, 6]), ({}, [1, 2, 5]))]
)
def test_shares_do_not_change_the_training(more, shares):
    config = replace(GPT, balance=True, **more)
    alone = on_ranks(1, GPT)[0]
    found = ringreduce.run(unequal, len(shares), config, shares, GPT.steps, timeout=100)[0]
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert found["norm"] == pytest.approx(alone["gradient_norm"], rel=1e-4)


def test_a_batch_need_not_be_a_multiple_of_the_ranks():
    config = replace(GPT, batch=7)
    found = on_ranks(2, replace(config, balance=True))[0]
    assert found["loss"] == pytest.approx(on_ranks(1, config)[0]["loss"], rel=1e-4)


def test_shares_are_saved():
    config = replace(GPT, balance=True, balance_every=2)
    state = on_ranks(2, config, until=4)[0]["state"]
    state["balance"]["plan"] = [[4, [6, 2]]]
    (comm,) = ringreduce.local_group(1)
    assert Trainer(config, comm).balance.shares == (8,)
    again = on_ranks(2, replace(config, balance_every=100), state)[0]
    assert again["state"]["balance"]["plan"] == [[4, [6, 2]]]
    assert again["loss"] == pytest.approx(on_ranks(2, GPT)[0]["loss"][4:], rel=1e-4)


# --- large batches -------------------------------------------------------------------------------------------

LARGE = {
    "lars": {"optimizer": "lars", "learning_rate": 1.0, "trust_coefficient": 0.02},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.02},
}


@pytest.mark.parametrize("optimizer", ["lars", *slowly("lamb")])
def test_optimizers_for_large_batches_train_alike_on_any_number_of_ranks(optimizer):
    pytest.importorskip("pytorch_optimizer")
    config = replace(GPT, **LARGE[optimizer])
    alone = on_ranks(1, config)[0]
    assert alone["loss"][-1] < 0.95 * alone["loss"][0]
    for more in ({}, {"sharded_optimizer": 2}):
        found = on_ranks(2, replace(config, **more))[0]
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    saved = on_ranks(2, config, until=4)[0]
    again = on_ranks(2, config, checkpoint.load(_bytes_of(saved["state"])))[0]
    assert saved["loss"] + again["loss"] == pytest.approx(alone["loss"], rel=1e-4)


def test_the_package_of_lars_is_named_where_it_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    assert main(["--optimizer", "lars", "--steps", "1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ringreduce.train: optimizer: lars needs pytorch_optimizer 4.1 or later, but ")
    assert told.endswith(": pip install 'ringreduce[train]'\n")


# --- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"local_steps": 0}, "local_steps must be >= 1, not 0"),
        ({"low_communication": "gossip"}, "low_communication must be one of none, local_sgd, diloco"),
        (
            {"low_communication": "local_sgd", "wire": "int8"},
            "wire: cannot be combined with low_communication",
        ),
        (
            {"low_communication": "diloco", "compression": "topk"},
            "compression: cannot be combined with low_comm",
        ),
        ({"low_communication": "diloco", "sharded_optimizer": 1}, "sharded_optimizer 1: cannot be combined"),
        ({"low_communication": "diloco", "sharded_optimizer": 2}, "sharded_optimizer 2: cannot be combined"),
        ({"low_communication": "diloco", "logical_shards": 2}, "logical_shards: cannot be combined"),
        (
            {"low_communication": "diloco", "synchronous_steps": 5},
            "synchronous_steps: only local_sgd has them",
        ),
        ({"low_communication": "streaming_diloco", "adaptive_steps": True}, "adaptive_steps: not in this"),
        (
            {"low_communication": "streaming_diloco", "local_steps": 2, "overlap": 2},
            "overlap: 2 is not less than",
        ),
        (
            {"balance": True, "low_communication": "diloco"},
            "balance: cannot be combined with low_communication",
        ),
        ({"balance": True, "logical_shards": 2}, "balance: cannot be combined with logical_shards"),
        ({"balance": True, "task": "digits"}, "balance: sync_batch_norm makes the ranks wait"),
    ],
)
def test_bad_settings_are_named(settings, named, tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(settings))
    assert main(["--config", str(file), "--print-config"]) == 2
    assert named in capsys.readouterr().err


def test_a_batch_that_is_too_small_for_all_micro_batches_is_named():
    with pytest.raises(Exception, match="batch: 8 is less than 3 ranks x 3 micro-batches") as caught:
        on_ranks(3, replace(GPT, balance=True, accumulation=3))
    assert isinstance(caught.value.__cause__, ConfigError)


def test_a_run_with_checkpoints_goes_on(tmp_path, capfd):
    flags = [
        "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--text-bytes", str(1 << 20),
        "--batch", "8", "--evaluate-samples", "16", "--timeout", "30", "--threads", "1", "--ranks", "2",
        "--low-communication", "streaming_diloco", "--local-steps", "3", "--checkpoints", str(tmp_path / "run"),
        "--resume", "auto", "--trace", str(tmp_path / "trace.json"),
    ]  # fmt: skip
    assert main([*flags, "--steps", "4"]) == 0
    assert main([*flags, "--steps", "7"]) == 0
    spans = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"forward", "synchronisation"} <= spans
    log = capfd.readouterr().out
    assert "step 7: validation_loss" in log
    assert "steps                       7" in log
