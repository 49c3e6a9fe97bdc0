"""examples/data_parallel_from_scratch.py beside DataParallel and beside a single process: equal, not close."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from ringreduce import DataParallel
from tests.conftest import slowly
from tests.training.models import TINY, TwoHeads, alone, batch, chain, gradients, same
from tests.training.models import on_ranks as on_local_ranks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path("examples/data_parallel_from_scratch.py")
SMALL = 100  # bytes in a bucket, so that there are several even in these models
WIDE = torch.float64  # holds two steps' weights, which are short dyadic numbers, without rounding


def loaded():
    spec = importlib.util.spec_from_file_location(PROGRAM.stem, ROOT / PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scratch = loaded()


def train(model, comm, finish, set_to_none):
    """Gradients and weights after each of two steps, as NumPy arrays, which processes can return."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1 / 64, momentum=0.5)
    found = []
    for step in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(batch(comm.rank, step, WIDE)).sum().backward()
        finish()
        found.append([gradient.numpy() for gradient in gradients(model)])
        optimizer.step()
        found.append([parameter.detach().clone().numpy() for parameter in model.parameters()])
    return found


def from_scratch(comm, limit, set_to_none):
    model = chain(comm.rank, WIDE)
    return train(model, comm, scratch.Averager(model, comm, limit).finish, set_to_none)


def by_data_parallel(comm, set_to_none):
    model = DataParallel(chain(comm.rank, WIDE), comm, **TINY)
    return train(model, comm, lambda: None, set_to_none)


def by_one_process(world):
    model = chain(dtype=WIDE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1 / 64, momentum=0.5)
    found = []
    for step in range(2):
        optimizer.zero_grad()
        (sum(model(batch(rank, step, WIDE)).sum() for rank in range(world)) / world).backward()
        found.append(gradients(model))
        optimizer.step()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    return found


def equal(ours, theirs):
    return all(
        same([torch.as_tensor(x) for x in a], [torch.as_tensor(x) for x in b])
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("set_to_none", [True, *slowly(False)])
@pytest.mark.parametrize("limit", [SMALL, scratch.BUCKET_BYTES], ids=["many buckets", "one bucket"])
@pytest.mark.parametrize("world", [*slowly(1, 2), 4])
def test_gradients_and_weights_are_those_of_one_process_and_of_data_parallel(
    on_ranks, world, limit, set_to_none
):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = by_one_process(world)
        ours = on_ranks(world, from_scratch, limit, set_to_none)
        theirs = on_ranks(world, by_data_parallel, set_to_none)
    finally:
        torch.set_num_threads(before)
    assert all(equal(found, expected) for found in [*ours, *theirs])


def test_buckets_are_cut_in_the_order_given_and_sent_in_that_order():
    model = chain()  # bytes from the end: 8, 40, 20, 120, 24, 96
    buckets = scratch.in_buckets(reversed(list(model.parameters())), SMALL)
    assert [[p.nbytes for p in bucket.parameters] for bucket in buckets] == [[8, 40, 20], [120], [24], [96]]

    class Recording:
        """A communicator of one rank that notes what it is to reduce."""

        def __init__(self, comm):
            self.comm, self.reduced = comm, []

        def broadcast(self, x, root):
            return self.comm.broadcast(x, root=root)

        def all_reduce(self, x, **options):
            self.reduced.append((x.numel() * 4, missing()))
            return self.comm.all_reduce(x, **options)

    def missing():
        return sum(bucket.missing for bucket in averager.buckets)

    (comm,) = scratch.ringreduce.local_group(1)
    recording = Recording(comm)
    averager = scratch.Averager(model, recording, SMALL)
    model(batch(0)).sum().backward()
    averager.finish()
    # The first bucket goes when three of six gradients are still to come: communication overlaps with computing.
    assert [nbytes for nbytes, _ in recording.reduced] == [68, 120, 24, 96]
    left = [left for _, left in recording.reduced]
    assert left[0] >= 2 and left == sorted(left, reverse=True) and left[-1] == 0


def test_a_gradient_too_few_or_too_many_is_refused():
    def rank_main(comm):
        model = TwoHeads()
        averager = scratch.Averager(model, comm)
        model(batch(comm.rank)).sum().backward()  # "never" gets no gradient
        with pytest.raises(RuntimeError, match="exactly one gradient between two calls of finish"):
            averager.finish()
        model = chain()
        averager = scratch.Averager(model, comm)
        for _ in range(2):
            model(batch(comm.rank)).sum().backward()
        with pytest.raises(RuntimeError, match="exactly one gradient between two calls of finish"):
            averager.finish()

    on_local_ranks(2, rank_main)


def test_frozen_parameters_are_left_alone():
    def rank_main(comm):
        model = chain()
        model[0].weight.requires_grad_(False)
        averager = scratch.Averager(model, comm, SMALL)
        model(batch(comm.rank)).sum().backward()
        averager.finish()
        return gradients(model)

    expected = alone(chain(), world=2)
    expected[0] = None
    for found in on_local_ranks(2, rank_main):
        assert same(found, expected)


@pytest.mark.slow
def test_the_program_runs_as_the_documentation_says():
    """And its losses are those of one process, but for the order in which samples are added up."""
    (command,) = re.findall(rf"^ +(torchrun .*{PROGRAM})$", (ROOT / "docs/training.md").read_text(), re.M)
    assert command in (ROOT / PROGRAM).read_text()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "OMP_NUM_THREADS": "1",
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    losses = []
    for start in ([*torchrun, "--standalone", *command.split()[1:]], [sys.executable, str(PROGRAM)]):
        run = subprocess.run(start, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=200)
        assert run.returncode == 0, run.stdout + run.stderr
        losses.append([float(loss) for loss in re.findall(r"^step \d+: loss (.*)$", run.stdout, re.M)])
    assert len(losses[0]) == 50 and losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert sum(losses[0][-10:]) < 0.8 * sum(losses[0][:10])
