"""Checkpoints of several runs in one folder: what is loaded comes from one of them, and from the latest."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
from functools import partial

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from ringreduce import elastic
from ringreduce.elastic import checkpoints
from ringreduce.elastic.runs import Run, checkpoints_in
from tests.conftest import slow_rows, slowly
from tests.training.elastic.ranks import Job, kill_self
from tests.training.elastic.training import STEPS, Plan, check, train, undisturbed

TENSORS = [f"x{number}" for number in range(6)]


def member(me, folder, value, steps, resume, torn, keep=2):
    """Makes steps that change nothing, with a checkpoint at every fourth. Returns what the first step began with."""

    def write(place, content, real=checkpoints.write_sealed):
        written = content["step"] == torn and me.number == 0 and real(place, content) is None
        if content["step"] != torn:
            real(place, content)
        else:  # the machine stops: only rank 0 has written
            me.note() if written else me.wait_for(0)
            kill_self()

    checkpoints.write_sealed = write
    comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
    state = elastic.State(comm, **{name: torch.full((3,), value) for name in TENSORS})
    found = None
    saved = elastic.Checkpoints(folder, every=4, keep=keep, resume=resume)
    for step in elastic.steps(state, steps, checkpoints=saved):
        with step:
            if found is None:
                found = step.number, {float(getattr(state, name)[0]) for name in TENSORS}
    return found


def run(folder, value, steps, *, ranks=2, resume=False, torn=None, **more):
    """Runs a job whose state has one value, which tells later where it comes from."""
    plan = partial(member, folder=folder, value=value, steps=steps, resume=resume, torn=torn, **more)
    job = Job(plan, ranks)
    if torn is not None:
        return job.outcomes()
    found, *others = job.values()
    assert all(other == found for other in others)
    return found


def resumed(folder, ranks=2):
    """Returns from which step a job goes on, and from whose values."""
    copy = folder.parent / f"{folder.name}-copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    number, values = run(copy, 99.0, 44, ranks=ranks, resume=True)
    return number, *values


def parts_of(folder):
    return sorted(os.listdir(folder))


def test_a_torn_checkpoint_of_a_new_run_leaves_that_of_the_older_one(tmp_path):
    run(tmp_path / "c", 1.0, 4)
    run(tmp_path / "c", 2.0, 4, torn=4)
    assert [len(parts_of(path)) for path in checkpoints_in(tmp_path / "c")] == [2, 1]
    assert resumed(tmp_path / "c") == (4, 1.0)


@pytest.mark.parametrize(("first", "then"), [(2, 3), *slow_rows((3, 2))])
def test_the_latest_run_counts_whatever_its_number_of_ranks(first, then, tmp_path):
    run(tmp_path / "c", 1.0, 4, ranks=first)
    run(tmp_path / "c", 2.0, 4, ranks=then)
    assert resumed(tmp_path / "c", ranks=1) == (4, 2.0)


@pytest.mark.slow
def test_a_new_run_in_the_folder_of_a_longer_one(tmp_path):
    folder = tmp_path / "c"
    run(folder, 1.0, 40)
    run(folder, 2.0, 8, torn=8)
    assert resumed(folder) == (4, 2.0)
    run(folder, 3.0, 16)
    assert [(path.name[:13], len(parts_of(path))) for path in checkpoints_in(folder)] == [
        ("step-00000012", 2), ("step-00000016", 2),
    ]  # fmt: skip
    assert resumed(folder) == (16, 3.0)


def test_older_checkpoints_stay_until_enough_newer_ones_are_whole(tmp_path):
    folder = tmp_path / "c"
    run(folder, 1.0, 8)
    older = checkpoints_in(folder)
    run(folder, 2.0, 4, torn=4)
    assert checkpoints_in(folder)[:2] == older
    run(folder, 3.0, 4)
    assert elastic.Checkpoints(folder).whole()[0] == older[1]
    run(folder, 4.0, 4, keep=1)
    assert len(checkpoints_in(folder)) == 1


def test_a_run_that_resumes_goes_on_from_its_own_checkpoints(tmp_path):
    folder = tmp_path / "c"
    run(folder, 1.0, 40)
    run(folder, 2.0, 4)
    assert run(folder, 3.0, 12, ranks=3, resume=True) == (4, {2.0})
    assert resumed(folder) == (12, 2.0)


@pytest.mark.slow
def test_a_new_run_never_goes_back_to_an_older_one(tmp_path):
    plan = Plan("sharded2", copies=0, checkpoints=(str(tmp_path), 100))
    Job(partial(train, plan=plan), 3).values()
    plan = Plan("sharded2", copies=0, checkpoints=(str(tmp_path), 100), resume=False, dies={1: 13})
    with pytest.raises(elastic.StateLost, match="rank 1 of 3"):
        Job(partial(train, plan=plan), 3).values(but=(1,))


def test_a_new_run_goes_back_to_its_own_checkpoints(tmp_path):
    Job(partial(train, plan=Plan("sharded2", copies=0, checkpoints=(str(tmp_path), 5))), 3).values()
    plan = Plan("sharded2", copies=0, checkpoints=(str(tmp_path), 5), resume=False, dies={1: 13})
    expected = undisturbed()
    for own in Job(partial(train, plan=plan), 3).values(but=(1,))[::2]:
        check(own, expected)
        assert own["first"] == 0 and own["tries"] > STEPS + 3  # steps 10 to 13 again


def test_no_more_steps_than_the_checkpoint_has_done(tmp_path):
    run(tmp_path, 1.0, 8)
    with pytest.raises(ValueError, match="count is 4, but the state has done 8 steps"):
        run(tmp_path, 1.0, 4, resume=True)


def test_all_ranks_write_checkpoints_or_none(tmp_path):
    def some(me):
        comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
        saved = elastic.Checkpoints(tmp_path, every=4) if me.number else None
        for step in elastic.steps(elastic.State(comm, x=torch.zeros(1)), 4, checkpoints=saved):
            with step:
                pass

    with pytest.raises(
        elastic.StateMismatch, match="checkpoints every: 4; the group has checkpoints every: None"
    ):
        Job(some, 2).values()


RANK_0, RANK_1 = "rank-00000-of-00002.pt", "rank-00001-of-00002.pt"


@pytest.fixture
def two(tmp_path):
    """The checkpoints of two runs, whole."""
    run(tmp_path / "c", 1.0, 4)
    run(tmp_path / "c", 2.0, 4)
    return checkpoints_in(tmp_path / "c")


def test_a_file_in_another_ranks_place(two):
    shutil.copy(two[1] / RANK_0, two[1] / RANK_1)
    was = rf"{two[1]}/{RANK_1} was written as {two[1].name}/{RANK_0}\. All files"
    with pytest.raises(elastic.CheckpointError, match=was):
        resumed_here(two)


def test_a_file_of_another_run(two):
    shutil.copy(two[0] / RANK_1, two[1] / RANK_1)
    with pytest.raises(elastic.CheckpointError, match=f"{RANK_1} was written as {two[0].name}/{RANK_1}"):
        resumed_here(two)


def test_a_checkpoint_under_another_name(two):
    two[0].rename(two[0].with_name(Run(3, "0" * 8).name(4)))
    with pytest.raises(elastic.CheckpointError, match="was written as step-00000004-run-00001"):
        resumed_here(two)


@pytest.mark.parametrize("content", [{}, {"place": 3}, *slowly([1], torch.ones(2))], ids=repr)
def test_what_is_no_part_of_a_checkpoint(content, two):
    checkpoints.write_sealed(two[1] / RANK_0, content)
    with pytest.raises(
        elastic.CheckpointError, match=f"{RANK_0} (is not part of a checkpoint|was written as 3)"
    ):
        resumed_here(two)


def test_a_folder_without_a_run(two):
    shutil.rmtree(two[0])
    two[1].rename(two[1].with_name("step-00000004"))
    with pytest.raises(elastic.CheckpointError, match=r"step-00000004/rank-00000-of-00002.pt was written as"):
        resumed_here(two)


@pytest.mark.parametrize("left", [[RANK_1], [RANK_0, "rank-00001-of-00003.pt"], *slowly([RANK_0], [])])
def test_a_checkpoint_with_other_files_is_not_used(left, two):
    for path in two[1].iterdir():
        if path.name not in left:
            path.unlink()
    for name in left:
        (two[1] / name).touch()
    (two[1] / f"{RANK_1}.partial").write_bytes(b"half")
    assert resumed(two[1].parent) == (4, 1.0)


def resumed_here(two):
    run(two[0].parent, 9.0, 8, resume=True)


@pytest.mark.slow
def test_old_checkpoints_go_while_another_rank_looks(tmp_path):
    """Checkpoints after every step, each of which both ranks list while the other one removes them."""

    def often(me):
        comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
        state = elastic.State(comm, x=torch.zeros(3))
        for step in elastic.steps(state, 400, checkpoints=elastic.Checkpoints(tmp_path, every=1, keep=1)):
            with step:
                state.x += 1
        return state.step

    assert Job(often, 2).values() == [400, 400]
    assert len(checkpoints_in(tmp_path)) == 1


def test_runs_in_the_order_of_their_beginning(tmp_path):
    assert checkpoints_in(tmp_path / "none") == []
    made = []
    for number, step in itertools.product(range(3), (100_000_000, 7)):
        begun = Run.begin(tmp_path)
        assert begun.number == 2 * number + (step == 7) + 1
        made.append(tmp_path / begun.name(step))
        made[-1].mkdir()
    (tmp_path / "step-00000001-run-00001-xyz").mkdir()
    assert checkpoints_in(tmp_path) == made
    assert checkpoints_in(tmp_path, since=5) == made[4:]
    assert checkpoints_in(tmp_path, ".pt") == []
