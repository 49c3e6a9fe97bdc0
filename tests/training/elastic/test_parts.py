"""Parts of a model that have groups of their own, on ranks that are lost and that come: compression and batch norm."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before processes are forked
from torch import nn

import ringreduce
from ringreduce import compression, elastic
from ringreduce.training.data_parallel.sync_batch_norm import SyncBatchNorm, _Normalize
from tests.conftest import slowly
from tests.training.elastic.ranks import Job, dies_at
from tests.training.elastic.training import DYING, check, found_in, make, one_step, undisturbed

STEPS, BATCH = 16, 12
METHODS: dict[str, Any] = {
    "fp16": partial(compression.HalfPrecision, "fp16"),
    "int8": compression.Int8Blocks,
    "sign": compression.SignMajority,
    "topk": partial(compression.TopK, fraction=0.25),
    "powersgd": partial(compression.PowerSGD, matrix_rank=2),
}


def network(kind: str, comm: Any) -> Any:
    """Returns a model whose gradients fill several buckets, with batch norm or a compression hook."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(16) if kind == "norm" else nn.Identity() for _ in range(2)]
    net: Any = nn.Sequential(
        nn.Linear(6, 16), norms[0], nn.Tanh(), nn.Linear(16, 16), norms[1], nn.Linear(16, 1)
    )
    net = ringreduce.convert_sync_batchnorm(net.double(), comm)
    model = ringreduce.DataParallel(net, comm, bucket_mb=0.0005, first_bucket_mb=0.0005)
    if kind in METHODS:
        model.register_comm_hook(METHODS[kind](group=comm), compression.hook)
    return model


def batch(step: Any) -> tuple[Any, Any, int]:
    """Returns this rank's samples of the batch of a step, their targets, and its number of samples."""
    x = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step.number), dtype=torch.float64)
    own = x[step.rank :: step.size]
    return own, own.sum(1, keepdim=True), len(own)


def started(me: Any, die: Any) -> Any:
    torch.set_num_threads(1)
    if me.number >= me.members:
        os.environ["RINGREDUCE_NEWCOMER"] = "yes"
        me.wait_for(1, DYING)
    elif me.number == 1:
        me.note(DYING)  # soon
        die()
    return elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)


def train(me: Any, kind: str, die: Any, minimum: int = 1) -> dict[str, Any]:
    comm = started(me, die)
    model = network(kind, comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    state = elastic.State(comm, model=model, optimizer=optimizer)
    losses = {}
    for step in elastic.steps(state, STEPS, minimum=minimum, timeout=me.timeout):
        with step:
            x, y, count = batch(step)
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean() * (count * step.size / BATCH)
            loss.backward()
            optimizer.step()
            losses[step.number] = step.comm.all_reduce(loss.detach(), "avg").item()
    return {"state": model.module.state_dict(), "losses": losses, "size": state.comm.size}


def alone(comm: Any, kind: str) -> dict[str, Any]:
    """Returns what one process comes to."""
    model = network(kind, comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for step in elastic.steps(elastic.State(comm, model=model, optimizer=optimizer), STEPS):
        with step:
            x, y, _ = batch(step)
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    return dict(model.module.state_dict())


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all(torch.equal(value, theirs[name]) for name, value in ours.items())


def with_a_loss(kind: str, die: Any, newcomer: bool) -> list[Any]:
    """Trains on three processes, of which the second one dies. All that are left have the same bits in the end."""
    run = partial(train, kind=kind, die=die, minimum=3 if newcomer else 1)
    values = Job(run, 3, run, int(newcomer)).values(but=(1,))
    left = [found for found in values if found]
    assert len(left) == 2 + newcomer
    for found in left:
        assert found["size"] == len(left)
        assert same(found["state"], left[0]["state"])
        assert found["losses"].keys() <= left[0]["losses"].keys()
    return left


@pytest.mark.parametrize("newcomer", [*slowly(False), True])
@pytest.mark.parametrize("method", ["fp16", "powersgd", *slowly("int8", "sign", "topk")])
def test_compression_goes_on(method, newcomer):
    """The rank dies before one of the buckets of a step, when others have begun to exchange more of them."""
    found = with_a_loss(
        method, partial(dies_at, compression.Compression, "_average_as_float32", 20), newcomer
    )
    losses = found[0]["losses"]
    assert losses[STEPS - 1] < 0.5 * losses[0]


@pytest.mark.parametrize("minimum", [*slowly(1, 3)])
def test_compression_that_leaves_nothing_out_costs_no_bits(minimum):
    """Gradients are whole numbers, so the sums of any ranks are those of one process."""

    def run(me):
        comm = started(me, partial(dies_at, compression.Compression, "_average_as_float32", 13))
        model, optimizer = make("dp", comm)
        model.register_comm_hook(compression.TopK(fraction=1.0, group=comm), compression.hook)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        state = elastic.State(
            comm, model=model, optimizer=optimizer, schedule=schedule, count=0, tensor=torch.zeros(2)
        )
        for step in elastic.steps(state, STEPS, minimum=minimum, timeout=me.timeout):
            with step:
                one_step(step, state)
        return found_in(state)

    (expected,) = ringreduce.run(lambda _: undisturbed(STEPS), 1)
    for found in filter(None, Job(run, 3, run, minimum // 3).values(but=(1,))):
        check(found, expected)


MOMENTS = {
    "forward": partial(dies_at, SyncBatchNorm, "forward", 9),
    "between two layers": partial(dies_at, SyncBatchNorm, "_update_running", 9),
    "backward": partial(dies_at, _Normalize, "backward", 9),
}


@pytest.mark.parametrize("newcomer", [*slowly(False), True])
@pytest.mark.parametrize("moment", ["backward", *slowly("forward", "between two layers")])
def test_batch_norm_covers_the_ranks_that_are_left(moment, newcomer):
    """Its statistics are those of the same batch in one process, and so is all that follows from them."""
    found = with_a_loss("norm", MOMENTS[moment], newcomer)
    for name, value in ringreduce.run(alone, 1, "norm")[0].items():
        torch.testing.assert_close(found[0]["state"][name], value, rtol=1e-9, atol=1e-12)
