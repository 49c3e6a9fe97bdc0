"""States of a ShardedOptimizer: saved in one world and loaded in another, and their size."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import optim

import ringreduce
from tests.conftest import on_threads
from tests.training.sharded import MATRICES, SHAPES, Parameters, make, plain_steps, sharded_steps, values

KINDS = {
    "Adam": (optim.Adam, {}),
    "SGD": (optim.SGD, dict(momentum=0.9, lr=0.1)),
    "whole parameters": (optim.Adam, dict(shard="parameters")),
}
if hasattr(optim, "Adafactor"):
    KINDS["Adafactor"] = (optim.Adafactor, {})


def plain_options(options):
    return {key: value for key, value in options.items() if key != "shard"}


def first_half(comm, kind, shapes, options, root):
    model, optimizer = make(comm, kind, shapes, **options)
    sharded_steps(comm, model, optimizer, range(3))
    return model.state_dict(), optimizer.state_dict(root)


def second_half(comm, kind, shapes, options, saved):
    model_state, state = saved
    model, optimizer = make(comm, kind, shapes, **options)
    with torch.no_grad():
        model.load_state_dict(model_state)
    optimizer.load_state_dict(state)
    sharded_steps(comm, model, optimizer, range(3, 6))
    return values(model), optimizer.state_dict()


@pytest.mark.parametrize("name", KINDS)
def test_saved_by_three_ranks_and_loaded_by_two_by_one_and_by_the_optimizer_itself(name):
    kind, options = KINDS[name]
    shapes = MATRICES if name == "Adafactor" else SHAPES  # torch's takes no parameter without elements
    saved = on_threads(3, first_half, kind, shapes, options, None)[1]
    model = Parameters(shapes)
    optimizer = kind(model.parameters(), **plain_options(options))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    plain_steps(model, optimizer, range(3, 6))
    uninterrupted = Parameters(shapes)
    plain_steps(uninterrupted, kind(uninterrupted.parameters(), **plain_options(options)), range(6))
    for own, expected in zip(values(model), values(uninterrupted), strict=True):
        assert torch.equal(own, expected)
    for world in (1, 2, 3):
        for found, state in on_threads(world, second_half, kind, shapes, options, saved):
            for own, expected in zip(found, values(model), strict=True):
                assert torch.equal(own, expected)
            check_same_state(state, optimizer.state_dict(), shapes)


def check_same_state(found, expected, shapes=SHAPES):
    """But for parameters without elements, which no rank owns."""
    assert {**found, "state": None} == {**expected, "state": None}
    for number, state in expected["state"].items():
        if shapes[number] != (0, 3):
            assert found["state"][number].keys() == state.keys()
            for key, value in state.items():
                torch.testing.assert_close(found["state"][number][key], value, rtol=0, atol=0)


def test_a_state_of_the_optimizer_itself_is_taken_too():
    model = Parameters()
    optimizer = optim.Adam(model.parameters(), lr=0.5)
    plain_steps(model, optimizer, range(3))
    saved = model.state_dict(), optimizer.state_dict()
    continued = on_threads(2, second_half, optim.Adam, SHAPES, {}, copy.deepcopy(saved))
    plain_steps(model, optimizer, range(3, 6))
    for found, state in continued:
        assert state["param_groups"][0]["lr"] == 0.5
        assert all(torch.equal(own, expected) for own, expected in zip(found, values(model), strict=True))


def test_one_rank_only_gets_the_state_if_so_asked():
    everywhere = on_threads(3, first_half, optim.Adam, SHAPES, {}, None)
    (_, none), (_, state), (_, nothing) = on_threads(3, first_half, optim.Adam, SHAPES, {}, 1)
    assert none == nothing == {}
    check_same_state(state, everywhere[0][1])
    assert all(not value.is_cuda for own in state["state"].values() for value in own.values())


def with_strides(comm):
    weight = torch.nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    before, strides = weight.detach().clone(), weight.stride()
    optimizer = ringreduce.ShardedOptimizer([weight], optim.SGD, comm, lr=1.0, momentum=0.9)
    (weight * torch.arange(48.0).view(4, 3, 2, 2)).sum().backward()
    optimizer.step()
    momentum = optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, torch.arange(48.0).view(4, 3, 2, 2))
    assert weight.stride() == momentum.stride() == strides
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], momentum)
    return before, weight.detach().clone()


def test_parameters_that_are_not_contiguous():
    (before, after), _ = on_threads(2, with_strides)
    torch.testing.assert_close(after, before - torch.arange(48.0).view(4, 3, 2, 2), rtol=0, atol=1e-5)


def load_other_groups(comm):
    _, optimizer = make(comm, optim.Adam)
    state = optimizer.state_dict()
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match=r"state_dict has groups of \[7\] parameters, not of \[8\]"):
        optimizer.load_state_dict(state)


def test_a_state_of_other_groups_is_refused():
    on_threads(2, load_other_groups)


def held(comm, shard, stage):
    """Bytes that a rank holds after a step: of state, and of gradients."""
    model, optimizer = make(comm, optim.Adam, [(64, 64), (256,), (64, 32), (32, 64)], stage, shard=shard)
    sharded_steps(comm, model, optimizer, range(1))
    state = sum(v.nbytes for own in optimizer.state.values() for k, v in own.items() if k != "step")
    gradients = sum(b.gradient.nbytes for b in optimizer._shares if b.gradient is not None)
    whole = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return state, gradients, whole, sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("shard", ["elements", "parameters"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_holds_its_share_of_the_state_and_gradients(world, shard):
    ranks = on_threads(world, held, shard, 2)
    model = ranks[0][3]
    assert sum(rank[0] for rank in ranks) == 2 * model  # Adam's two moments, once over all ranks
    # Of whole parameters one rank has the largest, or its half of the others and the small one.
    most = model // world if shard == "elements" else 4 * max(64 * 64, (2 * 64 * 32 + 256) * (world == 2))
    for state, gradients, whole, _ in ranks:
        assert state <= 2 * most and gradients <= most and whole == 0


def test_stage_one_shards_the_state_only():
    for state, gradients, whole, model in on_threads(2, held, "elements", 1):
        assert (state, gradients, whole) == (model, 0, model)
