"""Checkpoints of an elastic training, read by other numbers of ranks."""

from __future__ import annotations

import importlib.util
import time
from functools import partial

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import elastic
from ringreduce.elastic import checkpoints
from ringreduce.elastic.runs import checkpoints_in
from tests.conftest import slow_rows, slowly
from tests.training.elastic.ranks import Job
from tests.training.elastic.training import STEPS, Plan, check, train, undisturbed


@pytest.fixture(scope="module")
def expected():
    return undisturbed()


def run(folder, members, steps, kind, **more):
    plan = Plan(kind, steps=steps, copies=0, checkpoints=(str(folder), 5), **more)
    return Job(partial(train, plan=plan), members).values(but=tuple(plan.dies))


def steps_in(folder):
    """Returns the steps of all checkpoints, whole or not, from old to new."""
    return [int(path.name.split("-")[1]) for path in checkpoints_in(folder)]


@pytest.mark.parametrize("kind", ["ddp", "sharded2", *slowly("dp", "fsdp", "sharded1", "parameters")])
@pytest.mark.parametrize(("first", "then"), [(3, 2), *slow_rows((2, 4))])
def test_other_numbers_of_ranks_go_on(kind, first, then, tmp_path, expected):
    run(tmp_path, first, 11, kind)
    assert steps_in(tmp_path) == [10, 11]
    for own in run(tmp_path, then, STEPS, kind):
        check(own, expected)
        assert own["first"] == 11
    assert [own["first"] for own in run(tmp_path, 1, STEPS, kind)] == [-1]  # nothing is left to do


def test_ranks_write_equal_shares():
    (comm,) = ringreduce.local_group(1)
    state = elastic.State(comm, **{f"x{number}": torch.ones(100 + number) for number in range(9)})
    shares = [checkpoints._share_of(state, rank, 3)["tensors"] for rank in range(3)]
    assert sorted(number for share in shares for number in share) == list(range(9))
    loads = [sum(map(len, share.values())) for share in shares]
    assert max(loads) - min(loads) <= 9


def test_a_lost_shard_without_copies_comes_from_the_checkpoint(tmp_path, expected):
    found = run(tmp_path, 3, STEPS, "sharded2", dies={1: 13})
    for number in (0, 2):
        check(found[number], expected)
        assert found[number]["tries"] > STEPS + 3  # steps 10 to 13 again


def test_an_incomplete_or_damaged_checkpoint(tmp_path, expected):
    run(tmp_path, 2, 11, "dp")
    before, last = elastic.Checkpoints(tmp_path).whole()
    (last / "rank-00001-of-00002.pt").unlink()
    place = before / "rank-00001-of-00002.pt"
    whole = place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2] + b"x" + whole[len(whole) // 2 + 1 :])
    with pytest.raises(elastic.CheckpointError, match=f"{place} is damaged: the checksum does not match"):
        run(tmp_path, 2, STEPS, "dp")
    place.write_bytes(whole)
    for own in run(tmp_path, 2, STEPS, "dp"):
        check(own, expected)
        assert own["first"] == 10


def test_a_checkpoint_of_another_state(tmp_path):
    run(tmp_path, 2, 5, "dp")
    with pytest.raises(
        elastic.CheckpointError, match=r"of another state. The first difference: it has model: DataParallel;"
    ):
        run(tmp_path, 2, STEPS, "sharded2")


def test_what_cannot_be_in_a_checkpoint(tmp_path):
    (comm,) = ringreduce.local_group(1)
    state = elastic.State(comm, value=object())
    with pytest.raises(elastic.CheckpointError, match="value: a object cannot be in a checkpoint"):
        elastic.Checkpoints(tmp_path).write(state)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    def slow(place, content, real=checkpoints.write_sealed):
        time.sleep(0.5)
        real(place, content)

    monkeypatch.setattr(checkpoints, "write_sealed", slow)
    (comm,) = ringreduce.local_group(1)
    state = elastic.State(comm, x=torch.zeros(3))
    ours = elastic.Checkpoints(tmp_path, every=2)
    events = []
    for step in elastic.steps(state, 3, checkpoints=ours):
        with step:
            state.x += 1
            events.append(bool(ours.whole()))
    assert events == [False] * 3
    assert steps_in(tmp_path) == [2, 3]
    state = elastic.State(comm, x=torch.zeros(3))
    ours._load(state, [checkpoints.read_sealed(next(ours.whole()[0].iterdir()))])
    assert state.x.tolist() == [2.0] * 3  # as it was, and not as it became meanwhile


def test_a_full_disk_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    (comm,) = ringreduce.local_group(1)
    state = elastic.State(comm, x=torch.zeros(3))
    with pytest.raises(elastic.CheckpointError, match=r"checkpoints: .*file"):
        for step in elastic.steps(
            state, 2, checkpoints=elastic.Checkpoints(tmp_path / "file", every=1, resume=False)
        ):
            with step:
                state.x += 1
