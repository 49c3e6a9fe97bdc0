"""Compression hooks under DataParallel and under torch's DDP, and what models learn with them."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringreduce
from ringreduce import DataParallel, compression
from ringreduce.compression import HalfPrecision, Int8Blocks, PowerSGD, SignMajority, TopK
from tests.conftest import slowly
from tests.frameworks.torch.groups import on_process_group
from tests.training.buckets import FakeBucket
from tests.training.models import on_ranks

SMALL = 2000 / (1 << 20)  # MiB in a bucket, so that there are several
WIDTH = 24
METHODS = {
    "fp16": lambda group: HalfPrecision("fp16", group),
    "int8": Int8Blocks,
    "sign": lambda group: SignMajority(group, block=64),
    "top-k": lambda group: TopK(group, fraction=0.05, warmup_steps=60),
    "powersgd": lambda group: PowerSGD(group, matrix_rank=2),
}


def make_model():
    """The same for ranks that are threads, which share torch's own generator."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / parameter.shape[-1] ** 0.5)
    return model


def batch(step, rank):
    """What is to be learned, and noise of variance 0.09 that cannot be."""
    draw = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(32, WIDTH, generator=draw)
    return x, x[:, :4].sum(1, keepdim=True).tanh() + 0.3 * torch.randn(32, 1, generator=draw)


def train(model, rank, steps, make_optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)):
    """This rank's losses; the rate goes down to nearly 0."""
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    losses = []
    for step in range(steps):
        x, y = batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def under_ddp(group_given):
    """All methods, one after the other; parameters after a few steps."""
    found = {}
    for name, make in METHODS.items():
        model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
        state = make(dist.group.WORLD if group_given else None)
        model.register_comm_hook(state, compression.hook)
        train(model, dist.get_rank(), 5)
        assert 0 < state.bytes_sent < state.bytes_uncompressed
        found[name] = flat(model)
        state.close()
    return found


def under_data_parallel(comm):
    found = {}
    for name, make in METHODS.items():
        model = DataParallel(make_model(), comm, bucket_mb=SMALL, first_bucket_mb=SMALL / 2)
        state = make(comm)
        model.register_comm_hook(state, compression.hook)
        train(model, comm.rank, 5)
        assert len(model.timings.buckets) > 1
        assert 0 < state.bytes_sent < state.bytes_uncompressed
        found[name] = flat(model)
    return found


def check_near_each_other(results):
    """Ranks the same to the bit, and methods near float32's: they average what they are given, not something else."""
    start = flat(make_model())
    plain = make_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 5)
    for step in range(5):
        optimizer.zero_grad()
        for rank in range(len(results)):
            x, y = batch(step, rank)
            (nn.functional.mse_loss(plain(x), y) / len(results)).backward()
        optimizer.step()
        schedule.step()
    way = flat(plain) - start
    for name in METHODS:
        for other in results[1:]:
            assert torch.equal(results[0][name], other[name]), name
        along = torch.nn.functional.cosine_similarity(results[0][name] - start, way, dim=0)
        assert along > (0.999 if name in ("fp16", "int8") else 0.6), (name, along)


@pytest.mark.parametrize("group_given", [True, False])
@pytest.mark.parametrize("backend", ["ringreduce", *slowly("gloo")])
def test_under_torchs_ddp(backend, group_given):
    check_near_each_other(on_process_group(2, under_ddp, group_given, backend=backend))


def test_under_data_parallel():
    check_near_each_other(on_ranks(3, under_data_parallel))


def on_the_world(comm):
    """Without a group: ringreduce.world(), which the rank makes with init()."""
    with pytest.raises(ringreduce.Error, match=r"call ringreduce\.init"):
        Int8Blocks()


def test_without_any_group():
    ringreduce.run(on_the_world, 1)


def on_part_of_the_ranks():
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        with pytest.raises(ValueError, match="not a rank of group"):
            Int8Blocks(group)
        return None
    gradient = torch.full((300,), 1.0 + dist.get_rank())
    bucket = FakeBucket([gradient], [torch.zeros(300)])
    return compression.hook(HalfPrecision("bf16", group), bucket).wait().unique().tolist()


@pytest.mark.parametrize("backend", ["ringreduce", "gloo"])
def test_on_part_of_the_ranks(backend):
    """The others need not know of it."""
    assert on_process_group(3, on_part_of_the_ranks, backend=backend) == [[2.0], None, [2.0]]


def lose_a_peer():
    """Rank 1 ends after two steps; rank 0 must learn why."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    model.register_comm_hook(Int8Blocks(), compression.hook)
    train(model, dist.get_rank(), 2)
    if dist.get_rank() == 1:
        return "left"
    try:
        train(model, 0, 1)
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_failure_reaches_the_training_thread_of_ddp():
    text, _ = on_process_group(2, lose_a_peer)
    assert "rank 1" in text


def test_a_failure_reaches_the_training_thread_of_data_parallel():
    """Ranks whose states differ: every rank's backward() says so."""

    def rank_main(comm):
        model = DataParallel(make_model(), comm)
        model.register_comm_hook(TopK(comm, fraction=0.1 * (1 + comm.rank)), compression.hook)
        with pytest.raises(ringreduce.MismatchError):
            train(model, comm.rank, 1)

    on_ranks(2, rank_main)


def final_loss(comm, make):
    model = DataParallel(make_model(), comm, bucket_mb=SMALL, first_bucket_mb=SMALL)
    if make is not None:
        model.register_comm_hook(make(comm), compression.hook)
    losses = train(model, comm.rank, 200, lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    assert losses[0] > 1
    return sum(losses[-50:]) / 50


@pytest.fixture(scope="module")
def float32_loss():
    return sum(on_ranks(2, final_loss, None)) / 2


@pytest.mark.parametrize("method", ["sign", *slowly("powersgd", "fp16", "int8", "top-k")])
def test_models_learn_as_well_as_without_compression(method, float32_loss):
    """After the same steps, from the same start, on the same data; no model can have less than 0.09 in the long run."""
    assert float32_loss < 0.11
    loss = sum(on_ranks(2, final_loss, METHODS[method])) / 2
    assert loss < 1.06 * float32_loss, (loss, float32_loss)
