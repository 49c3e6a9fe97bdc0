"""ShardedOptimizer beside the optimizer itself on averaged gradients."""

from __future__ import annotations

import io
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn, optim

import ringreduce
from tests.conftest import on_processes, on_threads
from tests.training.sharded import (
    MATRICES,
    SHAPES,
    SMALL_BUCKETS,
    Parameters,
    average_gradients,
    make,
    plain_steps,
    rank_gradients,
    sharded_steps,
    values,
)

STEPS = 4
KINDS = {
    "SGD": (optim.SGD, dict(lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "Adam": (optim.Adam, dict(lr=0.01, amsgrad=True)),
    "AdamW": (optim.AdamW, dict(lr=0.01)),
    "RMSprop": (optim.RMSprop, dict(lr=0.01, centered=True)),
    "Adagrad": (optim.Adagrad, dict(lr=0.1)),
    "NAdam": (optim.NAdam, dict(lr=0.01)),
    "Adafactor": (getattr(optim, "Adafactor", None), dict(lr=0.01)),
    "Muon": (getattr(optim, "Muon", None), dict(lr=0.01)),
}


def shapes_for(name):
    """Muon takes matrices only, and torch's Adafactor no parameters without elements."""
    return MATRICES if name in ("Muon", "Adafactor") else SHAPES


def same(found, expected):
    """Gradients are exact, and a slice of a parameter is updated by the same operations: so are the bits."""
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def trained(comm, kind, shapes, stage, options):
    model, optimizer = make(comm, kind, shapes, stage, **options)
    sharded_steps(comm, model, optimizer, range(STEPS))
    assert len(optimizer._shares) > 1
    return values(model)


def trained_plainly(kind, shapes, options):
    model = Parameters(shapes)
    plain_steps(model, kind(model.parameters(), **options), range(STEPS))
    return values(model)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_like_the_optimizer_itself(name, world, stage):
    kind, options = KINDS[name]
    if kind is None:
        pytest.skip(f"this torch has no {name}")
    expected = trained_plainly(kind, shapes_for(name), options)
    for found in on_threads(world, trained, kind, shapes_for(name), stage, options):
        same(found, expected)


@pytest.mark.parametrize("stage", [1, 2])
def test_whole_parameters_for_an_element_wise_optimizer(stage):
    expected = trained_plainly(optim.AdamW, SHAPES, {})
    for found in on_threads(3, trained, optim.AdamW, SHAPES, stage, dict(shard="parameters")):
        same(found, expected)


def test_between_processes():
    torch.set_num_threads(1)  # a forked rank may not start the parent's parallel regions again
    for found in on_processes(2, trained, optim.Adam, SHAPES, 2, {}):
        same(found, trained_plainly(optim.Adam, SHAPES, {}))


def accumulated(comm, synchronised):
    model, optimizer = make(comm, optim.Adam)
    for step in range(STEPS):
        optimizer.zero_grad()
        first, second = (rank_gradients(model, 2 * step + i, comm.rank, comm.size) for i in range(2))
        if synchronised:
            model(first).backward()
            assert all(p.grad is None for p in model.parameters())
        else:
            with optimizer.no_sync():
                model(first).backward()
            assert all(p.grad is not None for p in model.parameters())
        model(second).backward()
        assert all(p.grad is None for p in model.parameters())
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("synchronised", [True, False], ids=["in the shares", "no_sync"])
def test_gradients_add_up(synchronised):
    model = Parameters()
    optimizer = optim.Adam(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(2):
            model(average_gradients(model, 2 * step + i)).backward()
        optimizer.step()
    for found in on_threads(2, accumulated, synchronised):
        same(found, values(model))


def clipped(comm, stage, limit):
    model, optimizer = make(comm, optim.SGD, stage=stage, lr=1.0)
    norms = []
    for step in range(2):
        optimizer.zero_grad()
        inner = model.module if stage == 1 else model
        model(rank_gradients(inner, step, comm.rank, comm.size)).backward()
        norms.append(optimizer.clip_grad_norm_(limit).item())
        optimizer.step()
    return norms, values(model)


@pytest.mark.parametrize("limit", [1.0, 1e6])
@pytest.mark.parametrize("stage", [1, 2])
def test_clipping_by_the_norm_of_all(stage, limit):
    model = Parameters()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    norms = []
    for step in range(2):
        optimizer.zero_grad()
        model(average_gradients(model, step)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        optimizer.step()
    for own_norms, found in on_threads(3, clipped, stage, limit):
        assert own_norms == pytest.approx(norms, rel=1e-6)  # squares are added in another order
        for ours, theirs in zip(found, values(model), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def clipped_doubles(comm):
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = ringreduce.ShardedOptimizer([parameter], optim.SGD, comm, lr=1.0)
    (parameter * (1 + 2**-40)).sum().backward()
    return optimizer.clip_grad_norm_(10.0)


def test_the_norm_of_doubles_is_one():
    norms = on_threads(2, clipped_doubles)  # one of the ranks has no share
    assert [norm.dtype for norm in norms] == [torch.float64] * 2
    assert [norm.item() for norm in norms] == [pytest.approx(1 + 2**-40, rel=1e-14)] * 2


def saved(comm):
    layers = nn.Sequential(nn.Linear(100, 100), nn.Linear(4, 4))
    ringreduce.ShardedOptimizer(layers.parameters(), optim.SGD, comm, lr=1.0)
    file = io.BytesIO()
    torch.save(layers[1].state_dict(), file)
    return file.tell()


def test_a_layer_is_saved_without_its_neighbours():
    """Parameters are views of a bucket's memory, of which torch would save all."""
    assert max(on_threads(2, saved)) < 10_000


def with_unused(comm):
    """Parameter 1 is used by all ranks in the first step and then by rank 0 only, parameter 6 by none."""
    model, optimizer = make(comm, optim.AdamW, weight_decay=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        gradients = rank_gradients(model, step, comm.rank, comm.size)
        used = [n for n in range(len(SHAPES)) if n != 6 and (n != 1 or step == 0 or comm.rank == 0)]
        sum((model.all[n] * gradients[n]).sum() for n in used).backward()
        optimizer.step()
    return values(model)


def test_parameters_that_some_ranks_or_none_have_used():
    model = Parameters()
    optimizer = optim.AdamW(model.parameters(), weight_decay=0.5)
    for step in range(STEPS):
        for number, p in enumerate(model.all):
            p.grad = average_gradients(model, step)[number]
        if step > 0:
            model.all[1].grad = rank_gradients(model, step, 0, 2)[1] / 2
        model.all[6].grad = None
        optimizer.step()
    for found in on_threads(2, with_unused):
        same(found, values(model))


def in_groups(model, make_optimizer, steps):
    """Two groups with options of their own, a third one later, and a schedule for all."""
    ps = list(model.all)
    optimizer = make_optimizer([{"params": ps[:2], "lr": 0.1}, {"params": ps[2:5], "weight_decay": 0.3}])
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    steps(optimizer, range(0, 2), ps[:5])
    schedule.step()
    optimizer.add_param_group({"params": ps[5:], "lr": 0.2})
    steps(optimizer, range(2, 4), ps)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.005, 0.2]
    assert optimizer.param_groups[0]["momentum"] == 0.9 and optimizer.defaults["momentum"] == 0.9
    return values(model)


def sharded_in_groups(comm):
    model = Parameters()

    def steps(optimizer, numbers, parameters):
        for step in numbers:
            gradients = rank_gradients(model, step, comm.rank, comm.size)[: len(parameters)]
            sum((p * g).sum() for p, g in zip(parameters, gradients, strict=True)).backward()
            optimizer.step()

    def make_optimizer(groups):
        return ringreduce.ShardedOptimizer(
            groups, optim.SGD, comm, lr=0.01, momentum=0.9, bucket_mb=SMALL_BUCKETS
        )

    return in_groups(model, make_optimizer, steps)


def test_groups_and_schedules():
    model = Parameters()

    def steps(optimizer, numbers, parameters):
        for step in numbers:
            for p, g in zip(parameters, average_gradients(model, step), strict=False):
                p.grad = g
            optimizer.step()

    expected = in_groups(model, lambda groups: optim.SGD(groups, lr=0.01, momentum=0.9), steps)
    for found in on_threads(2, sharded_in_groups):
        same(found, expected)


def failing(comm):
    """A backward pass that ends halfway on all ranks; training goes on after zero_grad()."""
    model, optimizer = make(comm, optim.Adam)

    def fail(_gradient):
        raise RuntimeError("on purpose")

    handle = model.all[2].register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        model(rank_gradients(model, 99, comm.rank, comm.size)).backward()
    handle.remove()
    sharded_steps(comm, model, optimizer, range(STEPS))
    return values(model)


def test_training_goes_on_after_a_failed_backward_pass():
    for found in on_threads(2, failing):
        same(found, trained_plainly(optim.Adam, SHAPES, {}))


def failing_on_one(comm, leads_on):
    """Rank 1's backward pass fails: nobody makes a step of it, and with zero_grad() training goes on."""
    model, optimizer = make(comm, optim.Adam)
    before = values(model)

    def fail(_gradient):
        raise RuntimeError("on purpose")

    for place in range(len(SHAPES) - 1):  # the last one's gradient comes first
        handle = model.all[place].register_hook(fail) if comm.rank == 1 else None
        with pytest.raises(RuntimeError, match="on purpose") if comm.rank == 1 else nullcontext():
            model(rank_gradients(model, 99, comm.rank, comm.size)).backward()
        if comm.rank == 1:
            handle.remove()
        if comm.rank != 1 or leads_on != "zero_grad":
            with pytest.raises(
                ringreduce.Error, match=r"^ShardedOptimizer: rank 1: its backward pass failed$"
            ):
                optimizer.step() if leads_on != "clip" else optimizer.clip_grad_norm_(1.0)
        optimizer.zero_grad()
        assert all(torch.equal(*pair) for pair in zip(values(model), before, strict=True))
    sharded_steps(comm, model, optimizer, range(STEPS))
    return values(model)


@pytest.mark.parametrize("leads_on", ["step", "clip", "zero_grad"])
def test_a_backward_pass_that_fails_on_one_rank_is_an_error_on_all(leads_on):
    for found in on_threads(2, failing_on_one, leads_on):
        same(found, trained_plainly(optim.Adam, SHAPES, {}))


def failing_before_any_gradient(comm):
    """Rank 1's backward pass fails too early to be seen, and its next one meets the one that rank 0 is in."""
    model, optimizer = make(comm, optim.Adam)
    sharded_steps(comm, model, optimizer, range(1))
    optimizer.zero_grad()
    if comm.rank == 1:
        loss = model(rank_gradients(model, 99, comm.rank, comm.size))
        loss.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        optimizer.zero_grad()
    model(rank_gradients(model, 99, comm.rank, comm.size)).backward()
    before = values(model)
    with pytest.raises(ringreduce.Error, match=r"failed before its first .*: 1 on rank 0, 2 on rank 1$"):
        optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(values(model), before, strict=True))
    optimizer.zero_grad()
    sharded_steps(comm, model, optimizer, range(1, STEPS))
    return values(model)


def test_a_backward_pass_is_not_taken_for_the_next_one_of_another_rank():
    for found in on_threads(2, failing_before_any_gradient):
        same(found, trained_plainly(optim.Adam, SHAPES, {}))


def forgetful(comm):
    """After a backward pass that failed, the next one does not add to it."""
    model, optimizer = make(comm, optim.Adam)
    handle = model.all[-2].register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(rank_gradients(model, 99, comm.rank, comm.size)).backward()
    handle.remove()
    with pytest.raises(ringreduce.Error, match=r"the last backward pass failed: call zero_grad\(\) first"):
        model(rank_gradients(model, 99, comm.rank, comm.size)).backward()
    optimizer.zero_grad()
    sharded_steps(comm, model, optimizer, range(STEPS))
    return values(model)


def test_a_failed_backward_pass_is_not_added_to():
    for found in on_threads(2, forgetful):
        same(found, trained_plainly(optim.Adam, SHAPES, {}))


def overlapping(comm):
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    optimizer = ringreduce.ShardedOptimizer(layers.parameters(), optim.Adam, comm, bucket_mb=0.01)
    last = []
    layers[0].weight.register_post_accumulate_grad_hook(lambda p: last.append(time.monotonic()))
    layers(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    exchanged = optimizer.timings.buckets[: len(optimizer._shares)]
    assert [bucket.index for bucket in exchanged] == list(range(len(optimizer._shares)))
    return [bucket.submitted < last[0] for bucket in exchanged]


def test_buckets_leave_during_the_backward_pass():
    for early in on_threads(2, overlapping):
        assert len(early) == 4 and all(early[:3])


def closure_and_timings(comm):
    model, optimizer = make(comm, optim.SGD, lr=1.0)

    def closure():
        optimizer.zero_grad()
        loss = model(rank_gradients(model, 0, comm.rank, comm.size))
        loss.backward()
        return loss

    assert optimizer.step(closure).requires_grad
    assert len(optimizer.timings.buckets) == 2 * len(optimizer._shares)  # scattered, and gathered
    assert optimizer.timings.exposed <= sum(end - begin for begin, end in optimizer.timings.waits)
    return values(model)


def test_a_closure_computes_the_gradients():
    found, _ = on_threads(2, closure_and_timings)
    for ours, g, p in zip(found, average_gradients(Parameters(), 0), Parameters().all, strict=True):
        torch.testing.assert_close(ours, p.detach() - g, rtol=0, atol=0)
