"""What a ShardedOptimizer refuses, how parameters are placed, and what it does with each optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

import ringreduce
from ringreduce.training.foundation.kinds import choose_cut
from ringreduce.training.foundation.placement import balanced, by_elements, by_parameters
from tests.conftest import on_threads
from tests.training.sharded import make, rank_gradients, sharded_steps

SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 9), st.sampled_from([1, 4, 16]))
@settings(deadline=None)
def test_elements_are_cut_into_equal_parts(sizes, world, alignment):
    placement = by_elements(sizes, world, alignment)
    assert len(set(placement.counts)) == 1 and placement.counts[0] % alignment == 0
    check_apart(placement, sizes, alignment)
    padding = alignment * (len(sizes) + world)
    assert sum(placement.counts) < sum(sizes) + padding


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(1, 9), st.sampled_from([1, 16]))
@settings(deadline=None)
def test_whole_parameters_are_balanced(groups, world, alignment):
    loads = [0] * world
    for sizes in groups:
        owners = balanced(sizes, loads, alignment)
        placement = by_parameters(sizes, owners, world, alignment)
        check_apart(placement, sizes, alignment)
        for start, size, owner in zip(placement.starts, sizes, owners, strict=True):
            begin, end = placement.part(owner)
            assert begin <= start and start + size <= end
    largest = max(max(sizes) for sizes in groups) + alignment
    assert max(loads) - min(loads) <= largest


def check_apart(placement, sizes, alignment):
    """No two parameters overlap, and all are inside."""
    end = 0
    for start, size in sorted(zip(placement.starts, sizes, strict=True)):
        assert start >= end and start % alignment == 0
        end = start + size
    assert end <= sum(placement.counts)


def test_how_parameters_are_divided_for_each_optimizer():
    class Own(optim.Adam):
        pass

    for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop):
        assert choose_cut(kind, None) == "elements"
        assert choose_cut(kind, "parameters") == "parameters"
    assert choose_cut(Own, None) == "parameters" and choose_cut(Own, "elements") == "elements"
    for name in ("Adafactor", "Muon"):
        if hasattr(optim, name):
            assert choose_cut(getattr(optim, name), None) == "parameters"


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(stage=3), "stage must be 1 or 2, not 3"),
        (dict(bucket_mb=0), "bucket_mb must be positive"),
        (dict(bucket_mb=float("nan")), "bucket_mb must be positive, not nan"),
        (dict(shard="rows"), "shard must be 'elements', 'parameters' or None, not 'rows'"),
        (dict(optimizer_class=optim.LBFGS), "LBFGS cannot be sharded: its step uses all parameters"),
        (dict(optimizer_class=optim.SparseAdam), "SparseAdam cannot be sharded: it takes sparse gradients"),
        (dict(params=[torch.zeros(2)]), "no parameter needs a gradient"),
    ],
    ids=str,
)
def test_bad_arguments(options, message):
    (comm,) = ringreduce.local_group(1)
    arguments = {"params": [nn.Parameter(torch.zeros(2))], "optimizer_class": optim.Adam, **options}
    with pytest.raises(ValueError, match=message):
        ringreduce.ShardedOptimizer(comm=comm, **arguments)
    comm.close()


@pytest.mark.skipif(not hasattr(optim, "Adafactor"), reason="this torch has no Adafactor")
def test_slices_are_refused_where_whole_parameters_are_needed():
    with pytest.raises(ValueError, match="Adafactor needs whole parameters; use shard='parameters'"):
        choose_cut(optim.Adafactor, "elements")


def differing(comm):
    shapes = [(2, 3), (4,)] if comm.rank < 2 else [(2, 3), (5,)]
    with pytest.raises(ringreduce.Error) as caught:
        make(comm, optim.Adam, shapes)
    return str(caught.value)


def test_all_ranks_say_which_parameter_differs():
    texts = on_threads(3, differing)
    assert len(set(texts)) == 1
    assert "ShardedOptimizer: the ranks' parameters differ" in texts[0]
    assert "ranks 0, 1: parameter 1: float32[4]; rank 2: parameter 1: float32[5]" in texts[0]


def with_another_rate(comm):
    with pytest.raises(ringreduce.Error) as caught:
        make(comm, optim.SGD, lr=0.5 if comm.rank < 2 else 0.25)
    return str(caught.value)


def test_all_ranks_say_which_option_differs():
    texts = on_threads(3, with_another_rate)
    assert len(set(texts)) == 1
    assert "ranks 0, 1: lr of group 0: 0.5; rank 2: lr of group 0: 0.25" in texts[0]


def averaged_twice(comm):
    texts = []
    model = nn.Linear(2, 2)
    wrapper = ringreduce.DataParallel(model, comm)
    with pytest.raises(ValueError) as caught:
        ringreduce.ShardedOptimizer(model.parameters(), optim.SGD, comm, stage=2)
    texts.append(str(caught.value))
    del wrapper
    optimizer = ringreduce.ShardedOptimizer(model.parameters(), optim.SGD, comm, stage=2)
    with pytest.raises(ValueError) as caught:
        ringreduce.DataParallel(model, comm)
    texts.append(str(caught.value))
    del optimizer, caught
    ringreduce.DataParallel(model, comm)
    return texts


def test_gradients_are_averaged_once():
    wrapped, sharded = on_threads(2, averaged_twice)[0]
    assert "DataParallel already averages the gradients of parameter 0" in wrapped
    assert "ShardedOptimizer already averages the gradients of parameter weight" in sharded


def moved(comm):
    model, optimizer = make(comm, optim.Adam)
    sharded_steps(comm, model, optimizer, range(1))
    model.all[2].data = model.all[2].data.clone()
    model(rank_gradients(model, 1, comm.rank, comm.size)).backward()
    with pytest.raises(ringreduce.Error, match="the memory of parameter 2 was replaced"):
        optimizer.step()


def thawed(comm):
    frozen, other = (nn.Parameter(torch.ones(3), requires_grad=again) for again in (False, True))
    optimizer = ringreduce.ShardedOptimizer([frozen, other], optim.SGD, comm, lr=1.0)
    other.sum().backward()
    optimizer.step()
    assert frozen.tolist() == [1, 1, 1] and other.tolist() == [0, 0, 0]
    frozen.requires_grad_()
    (frozen.sum() + other.sum()).backward()
    with pytest.raises(ringreduce.Error, match="parameter 0 has a gradient, but needed none"):
        optimizer.step()


def sparse(comm):
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = ringreduce.ShardedOptimizer(table.parameters(), optim.SGD, comm, lr=1.0)
    with pytest.raises(TypeError, match="the gradient of parameter 0 is sparse"):
        table(torch.tensor([1])).sum().backward()
    optimizer.zero_grad()
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = ringreduce.ShardedOptimizer(table.parameters(), optim.SGD, comm, stage=1, lr=1.0)
    ringreduce.DataParallel(table, comm)(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="the gradient of parameter 0 is sparse"):
        optimizer.step()
    optimizer.zero_grad()


def misused(comm):
    _, optimizer = make(comm, optim.Adam, stage=1)
    with pytest.raises(ringreduce.Error, match="use its no_sync"), optimizer.no_sync():
        pass
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(optimizer)


@pytest.mark.parametrize("misuse", [moved, thawed, sparse, misused])
def test_misuse(misuse):
    on_threads(2, misuse)
