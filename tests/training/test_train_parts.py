"""Settings, sampler, schedule, data, checkpoints: what the trainer is made of, each by itself."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ringreduce
from ringreduce.elastic.runs import Run
from ringreduce.train import checkpoint
from ringreduce.train.__main__ import main
from ringreduce.train.config import Config, ConfigError
from ringreduce.train.data import ShardedSampler, Windows, load_data, source_files
from ringreduce.train.models import convnet, make_model
from ringreduce.train.parallel import learning_rate_factor, make_optimizer, peak_learning_rate
from ringreduce.train.training_run import _sharing
from tests.forked import forked

# --- settings ------------------------------------------------------------------------------------------------


def printed_config(capsys, *arguments: str) -> dict:
    assert main([*arguments, "--print-config"]) == 0
    return json.loads(capsys.readouterr().out)


def test_flags_override_the_file(tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text('{"steps": 7, "batch": 12, "autocast": true, "learning_rate": 1}')
    found = printed_config(capsys, "--config", str(file), "--steps", "9", "--no-autocast")
    assert (found["steps"], found["batch"], found["autocast"], found["learning_rate"]) == (9, 12, False, 1)
    assert found["width"] == Config().width


def test_printed_settings_can_be_read_again(tmp_path, capsys):
    found = printed_config(capsys, "--task", "digits", "--sharded-optimizer", "2")
    file = tmp_path / "again.json"
    file.write_text(json.dumps(found))
    assert printed_config(capsys, "--config", str(file)) == found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python reads TOML since 3.11")
def test_toml(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text('task = "digits"\nclip = 0.5\n')
    found = printed_config(capsys, "--config", str(file))
    assert (found["task"], found["clip"]) == ("digits", 0.5)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"stepz": 1, "batch": 2, "wdth": 3}', "run.json: stepz, wdth: there is no such key"),
        ('{"steps": "many"}', "steps must be of type int, not 'many'"),
        ('{"steps": true}', "steps must be of type int, not True"),
        ('{"autocast": 1}', "autocast must be of type bool, not 1"),
        ('{"optimizer": "adam"}', "optimizer must be one of adamw, sgd, lars, lamb, not 'adam'"),
        ('{"batch": 0}', "batch must be >= 1"),
        ('{"learning_rate": NaN}', "learning_rate must be of type float, not nan"),
        ('{"clip": NaN}', "clip must be of type float, not nan"),
        ('{"learning_rate": Infinity}', "learning_rate must be < 1e38, not inf"),
        ('{"threads": 99999}', "threads must be <= 1024, not 99999"),
        ('{"bucket_mb": 0}', "bucket_mb must be > 0, not 0"),
        ('{"bucket_mb": NaN}', "bucket_mb must be of type float, not nan"),
        ('{"first_bucket_mb": 0.0}', "first_bucket_mb must be > 0, not 0.0"),
        ('{"top_fraction": 0}', "top_fraction must be > 0, not 0"),
        ('{"top_fraction": 1.5}', "top_fraction must be <= 1, not 1.5"),
        ('{"momentum": 1.5}', "momentum must be < 1, not 1.5"),
        ('{"weight_decay": -0.1}', "weight_decay must be >= 0, not -0.1"),
        ('{"dropout": 1}', "dropout must be < 1, not 1"),
        ('{"seed": 18446744073709551616}', "seed must be < 18446744073709551616"),
        ('{"logical_shards": 4, "threads": 2}', "threads: logical_shards needs 1"),
        ('{"sharded_optimizer": true}', "sharded_optimizer must be one of 0, 1, 2, not True"),
        ('{"width": 10, "heads": 4}', "width: 10 is not a multiple of heads"),
        ('{"resume": "auto"}', "resume: auto needs a folder; set checkpoints"),
        ('{"batch": 10, "logical_shards": 4}', "batch: 10 is not a multiple of logical_shards"),
        ('{"accumulation": 2, "logical_shards": 4}', "accumulation"),
        ('{"wire": "bf16", "compression": "topk"}', "compression: cannot be combined with wire"),
        ("[1]", "the file must hold a table of settings"),
        ("{", "run.json"),
    ],
)
def test_bad_settings_are_named(content, named, tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(content)
    assert main(["--config", str(file), "--print-config"]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "named"), [("none.json", "none.json"), ("run.yaml", "must end in .toml or .json")]
)
def test_files_that_cannot_be_read_are_named(name, named, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("")
    assert main(["--config", str(tmp_path / name), "--print-config"]) == 2
    assert named in capsys.readouterr().err


# --- sampler -------------------------------------------------------------------------------------------------


def epochs(batches: int, samples: int, batch: int, size: int, **more) -> list[list[list[int]]]:
    """The first global batches: of each, the ranks' parts joined in rank order."""
    ranks = [iter(ShardedSampler(samples, batch, rank, size, **more)) for rank in range(size)]
    parts = more.get("micro_batches", 1)
    return [[i for rank in ranks for _ in range(parts) for i in next(rank)] for _ in range(batches)]


shapes = st.tuples(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 40), st.integers(0, 9)
)


@settings(deadline=None, max_examples=60)
@given(shapes, st.booleans())
def test_global_batches_are_the_same_for_any_number_of_ranks(shape, pad):
    size, parts, per_part, extra, seed = shape
    batch = size * parts * per_part
    samples = batch + extra
    one = epochs(5, samples, batch, 1, seed=seed, pad=pad)
    assert epochs(5, samples, batch, size, micro_batches=parts, seed=seed, pad=pad) == one


@settings(deadline=None, max_examples=60)
@given(shapes)
def test_every_sample_once_an_epoch(shape):
    size, _, per_part, extra, seed = shape
    batch = size * per_part
    samples = batch + extra
    for pad in (False, True):
        count = ShardedSampler(samples, batch, pad=pad).batches_per_epoch
        both = epochs(2 * count, samples, batch, size, seed=seed, pad=pad)
        for epoch in (both[:count], both[count:]):
            taken = [index for found in epoch for index in found]
            assert len(taken) == count * batch
            if pad:  # all; those that fill up the last batch, at most one batch, twice or more
                assert set(taken) == set(range(samples))
                assert sorted(taken[:samples]) == list(range(samples))
            else:  # none twice; those that fill no batch not at all
                assert len(set(taken)) == len(taken) > samples - batch


@settings(deadline=None, max_examples=30)
@given(shapes, st.integers(0, 12))
def test_going_on_from_a_batch_skips_those_before(shape, first):
    size, parts, per_part, extra, seed = shape
    batch = size * parts * per_part
    more = {"micro_batches": parts, "seed": seed}
    all_of_them = epochs(first + 4, batch + extra, batch, size, **more)
    assert epochs(4, batch + extra, batch, size, first_batch=first, **more) == all_of_them[first:]


def test_epochs_and_seeds_have_orders_of_their_own():
    sampler = ShardedSampler(100, 10)
    assert sampler.order(0).tolist() != sampler.order(1).tolist()
    assert sampler.order(0).tolist() != ShardedSampler(100, 10, seed=1).order(0).tolist()
    assert ShardedSampler(100, 10, shuffle=False).order(3).ravel().tolist() == list(range(100))


def test_batches_that_cannot_be_cut_are_refused():
    with pytest.raises(ConfigError, match="10 is not a multiple of 4 ranks"):
        ShardedSampler(100, 10, 0, 4)
    with pytest.raises(ConfigError, match="10 is more than the 9 samples"):
        ShardedSampler(9, 10)


# --- schedule and optimizer ----------------------------------------------------------------------------------


def test_learning_rate_scales_with_the_batch_and_warms_up_from_the_base():
    config = Config(batch=64, base_batch=16, learning_rate=0.1, warmup=4, steps=24)
    assert peak_learning_rate(config) == pytest.approx(0.4)
    rates = [0.4 * learning_rate_factor(config, step) for step in range(25)]
    assert rates[:4] == pytest.approx([0.175, 0.25, 0.325, 0.4])  # 0.1 would be that of the step before
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[24] == pytest.approx(0.04)


def test_learning_rate_may_scale_with_the_root_of_the_batch():
    config = Config(
        batch=64, base_batch=16, batch_scaling="sqrt", learning_rate=0.1, warmup=4, schedule="constant"
    )
    assert peak_learning_rate(config) == pytest.approx(0.2)
    rates = [0.2 * learning_rate_factor(config, step) for step in range(6)]
    assert rates == pytest.approx([0.125, 0.15, 0.175, 0.2, 0.2, 0.2])


def test_constant_schedule_without_warm_up():
    config = Config(warmup=0, schedule="constant", steps=5)
    assert {learning_rate_factor(config, step) for step in range(9)} == {1.0}


def test_biases_and_norms_do_not_decay():
    model = convnet(2)
    decaying, others = make_optimizer(Config(weight_decay=0.3), model, None).param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert {p.ndim for p in decaying["params"]} == {2, 4}
    assert {p.ndim for p in others["params"]} == {1}


# --- data and models -----------------------------------------------------------------------------------------


def test_windows_are_one_behind_the_other_and_targets_the_next_bytes():
    data = Windows(bytes(range(10)), context=3)
    assert [data[i][0].tolist() for i in range(len(data))] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert data[2][1].tolist() == [7, 8, 9]
    assert len(Windows(bytes(9), context=3)) == 2  # nothing would come after the third window


def test_source_files_have_a_fixed_order_and_are_no_ones_packages(tmp_path):
    for name in ("b.py", "a/z.py", "a.py", "test/t.py", "site-packages/s.py", "note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)]
    assert found == ["a/z.py", "a.py", "b.py"]


def test_text_is_cut_into_what_is_trained_on_and_what_is_held_out():
    train, held_out = load_data(Config(text_bytes=1 << 20))
    assert len(train.text) + len(held_out.text) == 1 << 20
    assert 0 < len(held_out.text) < len(train.text) / 4
    assert b"def __init__(self" in train.text.tobytes()
    with pytest.raises(ConfigError, match="text_bytes: 1000 is too small"):
        load_data(Config(text_bytes=1000))


def test_initial_weights_depend_on_the_seed_alone():
    config = Config(width=16, layers=1)
    first = make_model(config).state_dict()
    torch.rand(3)
    again, other = (
        make_model(config).state_dict(),
        make_model(Config(width=16, layers=1, seed=1)).state_dict(),
    )
    assert all(first[name].equal(again[name]) for name in first)
    assert not first["head.weight"].equal(other["head.weight"])


def test_gpt_does_not_see_what_comes():
    model = make_model(Config(width=16, layers=2, context=8))
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 99
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 8, 256)
    assert before[0, :5].equal(after[0, :5])
    assert not before[0, 5].equal(after[0, 5])


# --- checkpoints ---------------------------------------------------------------------------------------------


RUN = Run(1, "0a1b2c3d")


def at(folder: Path, step: int, run: Run = RUN) -> Path:
    return folder / f"{run.name(step)}.pt"


def test_checkpoints_of_the_last_steps_are_kept(tmp_path):
    for step in (5, 10, 100):
        checkpoint.save(tmp_path, RUN, step, {"step": step, "x": torch.ones(3)}, keep=2)
    assert sorted(tmp_path.iterdir()) == [at(tmp_path, 10), at(tmp_path, 100)]
    state = checkpoint.load(checkpoint.existing(tmp_path)[-1].read_bytes())
    assert state["step"] == 100
    assert state["x"].tolist() == [1, 1, 1]
    assert checkpoint.existing(tmp_path / "none") == []


def test_a_new_run_in_the_folder_of_a_longer_one(tmp_path):
    (tmp_path / "step-00000900.pt").write_bytes(b"as older versions named it")
    longer = [some_checkpoints(tmp_path, 100, 200)[-1], some_checkpoints(tmp_path, 10)[-1]]
    assert [path.name[:13] for path in longer] == ["step-00000200", "step-00000010"]
    config = Config(checkpoints=str(tmp_path), resume="auto")
    assert checkpoint.load(checkpoint.find(config))["step"] == 10
    run = Run.begin(tmp_path, ".pt")
    assert run.number == 3
    for step, left in ((5, ["step-00000010", "step-00000005"]), (6, ["step-00000005", "step-00000006"])):
        checkpoint.save(tmp_path, run, step, {"step": step}, keep=2)
        assert [path.name[:13] for path in checkpoint.existing(tmp_path)] == left
    assert len([*tmp_path.iterdir()]) == 2


def test_dying_in_the_middle_of_a_checkpoint_leaves_the_last_one(tmp_path):
    def write_half(file):
        os.truncate(file, 2000)
        os.kill(os.getpid(), signal.SIGKILL)

    def main():
        checkpoint.save(tmp_path, RUN, 1, {"step": 1, "x": torch.arange(1000)}, keep=1)
        os.fsync = write_half
        checkpoint.save(tmp_path, RUN, 2, {"step": 2, "x": torch.arange(1000)}, keep=1)

    (run,) = forked(main, ["main"])
    assert run.returncode == -signal.SIGKILL
    names = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert names[f"{at(tmp_path, 2).name}.partial"] == 2000
    state = checkpoint.load(checkpoint.existing(tmp_path)[-1].read_bytes())
    assert state["step"] == 1
    assert state["x"].equal(torch.arange(1000))
    checkpoint.save(tmp_path, RUN, 3, {"step": 3}, keep=1)
    assert [*tmp_path.iterdir()] == [at(tmp_path, 3)]


def test_torch_reads_checkpoints(tmp_path):
    checkpoint.save(tmp_path, RUN, 1, {"step": 1, "x": torch.arange(5)}, keep=1)
    assert torch.load(at(tmp_path, 1), weights_only=True)["x"].tolist() == [0, 1, 2, 3, 4]


def test_every_flipped_byte_is_found(tmp_path):
    checkpoint.save(tmp_path, RUN, 1, {"step": 1, "x": torch.arange(9)}, keep=1)
    content = at(tmp_path, 1).read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        with pytest.raises(ValueError, match="checksum"):
            checkpoint.load(bytes(changed))
    with pytest.raises(ValueError, match="checksum"):
        checkpoint.load(content[:-2] + bytes(2))  # not the end of a file without checksum


def flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    for place in range(0, len(content), len(content) // 64):
        changed[place] ^= 0xFF
    return bytes(changed)


def foreign(_: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, file)
    return file.getvalue()


DAMAGES = pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        flipped,
        foreign,
        lambda _: b"text\n" * 99,
    ],
    ids=["truncated", "empty", "flipped", "another model's", "text"],
)


def some_checkpoints(folder: Path, *steps: int) -> list[Path]:
    run = Run.begin(folder, ".pt")
    for step in steps:
        state = {"config": {}, "step": step, "model": {"x": torch.ones(999)}, "optimizer": {}, "schedule": {}}
        checkpoint.save(folder, run, step, state, keep=len(steps))
    return checkpoint.existing(folder)


@DAMAGES
def test_a_damaged_checkpoint_is_refused_and_another_one_offered(damage, tmp_path):
    first, second, third, _ = some_checkpoints(tmp_path, 1, 2, 3, 4)
    third.write_bytes(damage(third.read_bytes()))
    config = Config(resume=str(third))
    with pytest.raises(ConfigError) as caught:
        checkpoint.find(config)
    assert (
        str(caught.value) == f"resume: {third} is damaged or not a checkpoint; resume from {second} instead"
    )
    for path in (first, second):
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ConfigError, match=r"step-00000003-run-00001-\w+\.pt is damaged .*, and there is no intact older one"
    ):
        checkpoint.find(config)


@DAMAGES
def test_auto_takes_the_newest_whole_checkpoint(damage, tmp_path, capsys):
    config = Config(checkpoints=str(tmp_path), resume="auto")
    assert checkpoint.find(config) == b""
    paths = some_checkpoints(tmp_path, 1, 2, 3)
    assert checkpoint.load(checkpoint.find(config))["step"] == 3
    assert capsys.readouterr().out == ""
    for path in paths[1:]:
        path.write_bytes(damage(path.read_bytes()))
    assert checkpoint.load(checkpoint.find(config))["step"] == 1
    assert (
        capsys.readouterr().out
        == f"resume: skipping damaged {paths[2]} and {paths[1]}; resuming from {paths[0]}\n"
    )
    paths[0].write_bytes(damage(paths[0].read_bytes()))
    with pytest.raises(ConfigError, match=r"step-00000003-run-00001-\w+\.pt is damaged"):
        checkpoint.find(config)


def test_checkpoints_without_checksum_are_read(tmp_path):
    (path,) = some_checkpoints(tmp_path, 5)
    state = checkpoint.load(path.read_bytes())
    torch.save(state, path)
    assert checkpoint.load(checkpoint.find(Config(resume=str(path))))["step"] == 5


@pytest.mark.parametrize(
    ("error", "named"), [(errno.ENOSPC, "the disk is full"), (errno.EIO, "Input/output error")]
)
def test_what_cannot_be_written_leaves_the_checkpoints_before(error, named, tmp_path, monkeypatch):
    paths = some_checkpoints(tmp_path, 1, 2)

    def fail(_: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError) as caught:
        checkpoint.save(tmp_path, RUN, 3, {"step": 3}, keep=2)
    assert str(caught.value) == f"checkpoints: {at(tmp_path, 3)}: {named}"
    assert sorted(tmp_path.iterdir()) == paths


def test_checkpoints_hold_nothing_that_could_be_run(tmp_path):
    path = tmp_path / "bad.pt"
    torch.save({"step": Path("/")}, path)
    with pytest.raises(Exception, match="eights"):
        checkpoint.load(path.read_bytes())


def test_ranks_divide_the_cores_that_they_share():
    """Those that a launcher has bound to cores of their own share none."""
    places = {"all": [[0, 1, 2]] * 3, "own": [[0, 1], [2, 3], [4, 5]], "pairs": [[0], [0], [1]]}

    def sharing(comm):
        return {name: _sharing(comm, cores[comm.rank]) for name, cores in places.items()}

    found = ringreduce.run(sharing, 3)
    assert found == [{"all": 3, "own": 1, "pairs": 2 if rank < 2 else 1} for rank in range(3)]
