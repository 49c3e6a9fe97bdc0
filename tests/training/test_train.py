"""The trainer as a whole: the same training on any number of ranks, and going on from checkpoints."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if None in map(importlib.util.find_spec, ("torch", "sklearn")):
    pytest.skip("torch or scikit-learn is not installed", allow_module_level=True)

import numpy as np
import sklearn.datasets  # noqa: F401  # here, and not anew in every forked rank
import torch

import ringreduce
from ringreduce.train import checkpoint
from ringreduce.train.config import Config, ConfigError, replace
from ringreduce.train.trainer import StepReport, Trainer
from ringreduce.train.training_log import exposed_share, make_row, summary
from tests.conftest import slow_rows

GPT = Config(
    layers=2, heads=2, width=16, context=16, text_bytes=1 << 20, batch=8, steps=8, warmup=2, evaluate_samples=24,
    learning_rate=1e-2, bucket_mb=0.01, first_bucket_mb=0.001, timeout=30,
)  # fmt: skip
DIGITS = replace(GPT, task="digits", batch=64, channels=4)


def train(comm: Any, config: Config, resume: dict | None, until: int) -> dict[str, Any]:
    """On one rank: the losses of steps up to this one, and all that is left in the end."""
    torch.set_num_threads(1)
    trainer = Trainer(config, comm)
    if resume is not None:
        trainer.load_state_dict(resume)
    rows = [make_row(trainer, [trainer.step()]) for _ in range(until - trainer.done)]
    found = {name: [row[name] for row in rows] for name in ("loss", "gradient_norm")}
    return {**found, "state": trainer.state_dict(), **trainer.evaluate()}


def on_ranks(
    count: int, config: Config, resume: dict | None = None, until: int | None = None
) -> list[dict[str, Any]]:
    """What each rank has found."""
    until = config.steps if until is None else until
    return ringreduce.run(train, count, config, resume, until, timeout=config.timeout)


def same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return one == other


# --- the number of ranks -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return on_ranks(1, GPT)[0]


@pytest.mark.parametrize(("ranks", "more"), [
    (4, {}),
    (2, {"sharded_optimizer": 2, "accumulation": 2}),
    *slow_rows((2, {}), (2, {"accumulation": 2}), (2, {"sharded_optimizer": 1})),
])  # fmt: skip
def test_loss_curve_is_that_of_one_rank(ranks, more, alone):
    found = on_ranks(ranks, replace(GPT, **more))
    assert same_bits(found[0], found[-1])
    for name in ("loss", "gradient_norm", "validation_loss"):
        assert found[0][name] == pytest.approx(alone[name], rel=1e-4), name
    # How far it falls depends on the sources of Python, which it reads.
    assert alone["loss"][-1] < 0.9 * alone["loss"][0]


def test_digits_with_batch_norm_over_all_ranks_are_those_of_one_rank():
    config = replace(DIGITS, steps=6)
    one, two = on_ranks(1, config)[0], on_ranks(2, config)[0]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
    # By its own part of each batch alone, a rank would normalise otherwise.
    apart = on_ranks(2, replace(config, sync_batch_norm=False))[0]
    assert apart["loss"] != pytest.approx(one["loss"], rel=1e-3)


@pytest.mark.slow
def test_logical_shards_fix_the_bits():
    config = replace(GPT, logical_shards=4, reproducible=True, dropout=0.1, steps=5)
    one, two, four = (on_ranks(ranks, config)[0] for ranks in (1, 2, 4))
    assert [found["state"].pop("threads") for found in (one, two, four)] == [[1], [1, 1], [1, 1, 1, 1]]
    for other in (two, four):
        assert one["loss"] == other["loss"]
        assert same_bits(one["state"], other["state"])


def test_narrower_gradients_train_alike(alone):
    for more in ({"wire": "bf16"}, {"compression": "int8"}, {"autocast": True}):
        found = on_ranks(2, replace(GPT, **more))
        assert same_bits(found[0]["state"], found[1]["state"])
        assert found[0]["loss"] == pytest.approx(alone["loss"], rel=0.02)
        assert found[0]["loss"] != alone["loss"]


@pytest.mark.parametrize(("ranks", "more", "named"), [
    (3, {}, "batch: 8 is not a multiple of 3 ranks"),
    (2, {"accumulation": 8}, "batch: 8 is not a multiple of 2 ranks x 8 micro-batches"),
    (2, {"logical_shards": 1}, "logical_shards: 1 is not a multiple of the 2 ranks"),
])  # fmt: skip
def test_what_does_not_go_with_the_number_of_ranks_is_named(ranks, more, named):
    with pytest.raises(ringreduce.RankFailed) as caught:
        on_ranks(ranks, replace(GPT, **more))
    assert isinstance(caught.value.__cause__, ConfigError)
    assert named in str(caught.value.__cause__)


# --- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (3, {"batch": 9}),
        *slow_rows(
            (2, {}),
            (2, {"logical_shards": 4}),
            (2, {"sharded_optimizer": 2}),
            (2, {"task": "digits", "optimizer": "sgd", "batch": 512}),  # of 1437: two batches are an epoch
        ),
    ],
)
def test_going_on_gives_the_same_bits(ranks, more):
    config = replace(GPT, dropout=0.1, steps=6, **more)
    whole = on_ranks(ranks, config)[0]
    saved = on_ranks(ranks, config, until=3)[0]
    again = on_ranks(ranks, config, saved["state"])[0]
    assert saved["loss"] + again["loss"] == whole["loss"]
    assert same_bits(again["state"], whole["state"])


@pytest.mark.parametrize(("saved", "more", "expected"), [
    ([3], {}, [3]),
    ([3, 3], {}, []),  # of another number of ranks
    ([3], {"threads": 2}, []),
    ([3], {"reproducible": True}, []),
    ([3], {"logical_shards": 4}, []),
])  # fmt: skip
def test_going_on_takes_the_threads_of_the_checkpoint(saved, more, expected, monkeypatch):
    (comm,) = ringreduce.local_group(1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    state = Trainer(GPT, comm).state_dict()
    assert state["threads"] == [3]
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    Trainer(replace(GPT, **more), comm).load_state_dict({**state, "threads": saved})
    assert [count for count in taken if count != 1] == expected


@pytest.mark.slow
def test_going_on_with_another_number_of_ranks(alone):
    config = replace(GPT, sharded_optimizer=1)
    saved = on_ranks(2, config, until=4)[0]
    for ranks, stage in ((1, 0), (4, 1), (2, 2)):
        more = on_ranks(ranks, replace(config, sharded_optimizer=stage), saved["state"])[0]
        assert saved["loss"] + more["loss"] == pytest.approx(alone["loss"], rel=1e-4)


def test_compression_goes_on_with_what_it_has_not_sent():
    config = replace(GPT, compression="topk", top_fraction=0.05)
    saved = on_ranks(2, config, until=4)[0]["state"]
    memories = saved["compression"]
    assert [memory["rank"] for memory in memories] == [0, 1]
    assert not same_bits(memories[0]["memory"], memories[1]["memory"])
    again = on_ranks(2, config, saved)[0]
    # The first step has its gradients in other places than it had without a stop, and so may send others of two that
    # are equal; all else is the same.
    assert again["loss"] == pytest.approx(on_ranks(2, config)[0]["loss"][4:], rel=1e-3)
    assert same_bits(memories, checkpoint.load(_bytes_of(saved))["compression"])


def _bytes_of(state: dict[str, Any]) -> bytes:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_checkpoint_of_other_settings_is_refused():
    (comm,) = ringreduce.local_group(1)
    state = Trainer(GPT, comm).state_dict()
    with pytest.raises(ConfigError, match="resume: width is 16 in the checkpoint, but 32 in the settings"):
        Trainer(replace(GPT, width=32), comm).load_state_dict(state)


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_step():
    (comm,) = ringreduce.local_group(1)
    trainer = Trainer(GPT, comm)
    steps = [trainer.step()]
    trainer.module.head.weight.data.fill_(float("nan"))
    steps += [trainer.step(), trainer.step()]
    with pytest.raises(FloatingPointError, match="the loss of step 2 is not finite"):
        make_row(trainer, steps)


@pytest.mark.parametrize(("communication", "exposed", "share"), [
    ([[1.0, 1.0]], [[0.2, 0.3]], 0.25),
    # Rank 1 is late; rank 0 waits 100 s for it, and rank 1 waits 0.5 s for 2 s of communication.
    ([[3.0], [2.0]], [[100.0], [0.5]], 0.25),
    ([[1.0], [1.0]], [[9.0], [8.0]], 1.0),
    ([[0.0]], [[0.0]], 0.0),
])  # fmt: skip
def test_exposed_share_is_a_part_of_the_communication(communication, exposed, share):
    assert exposed_share(np.array(communication), np.array(exposed)) == pytest.approx(share)


def test_summary_does_not_count_late_ranks_as_communication():
    (comm,) = ringreduce.local_group(1)
    trainer = Trainer(GPT, comm)
    rows = [
        make_row(trainer, [StepReport([1.0], 1.0, 10.0, communication=0.1, exposed=9.0)]) for _ in range(3)
    ]
    assert rows[0]["exposed_share"] == 1
    assert "100.00 ms (100 % exposed)" in summary(rows, 1)
