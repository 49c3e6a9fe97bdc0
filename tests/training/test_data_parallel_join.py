"""Ranks with unequal numbers of batches."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import DataParallel
from tests.training.models import TINY, TwoHeads, chain, gradients, on_ranks, same, whole

RATE = 1 / 64


def batch(rank: int, step: int) -> Any:
    return whole(8, 4, seed=100 * step + rank)


def trained_alone(batches: list[int], over_all: bool) -> Any:
    """The model after steps over the data of ranks that have some left."""
    model = chain()
    for step in range(max(batches)):
        model.zero_grad()
        active = [rank for rank, count in enumerate(batches) if step < count]
        losses = sum(model(batch(rank, step)).sum() for rank in active)
        (losses / (len(batches) if over_all else len(active))).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("batches", [[3, 1], [1, 3], [0, 2, 3, 1], [0, 0], [2, 2]])
@pytest.mark.parametrize("over_all", [True, False])
def test_all_end_with_the_model_of_those_who_had_most_data(batches, over_all):
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with model.join(divide_by_initial_world_size=over_all):
            for step in range(batches[comm.rank]):
                optimizer.zero_grad()
                model(batch(comm.rank, step)).sum().backward()
                optimizer.step()
        parameters = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        model(batch(comm.rank, 9)).sum().backward()  # as before, without join
        return parameters, gradients(model)

    def is_exact():
        active = [sum(step < count for count in batches) for step in range(max(batches))]
        return over_all or 3 not in active  # a third has no exact float

    expected = trained_alone(batches, over_all)
    found = on_ranks(len(batches), rank_main)
    for parameters, after in found:
        assert same(parameters, found[0][0]) and same(after, found[0][1])
        if is_exact():
            assert same(parameters, expected)
        else:
            assert all(torch.allclose(a, b) for a, b in zip(parameters, expected, strict=True))


@pytest.mark.parametrize("mode", ["find_unused_parameters", "static_graph"])
def test_with_unused_parameters(mode):
    """The first rank to have data is not rank 0, from the first step on; and rank 0 learns the graph later."""

    def rank_main(comm):
        model = DataParallel(TwoHeads(), comm, **{mode: True}, **TINY)
        for epoch in range(2):
            with model.join(divide_by_initial_world_size=False):
                for step in range(2 if comm.rank else 2 * epoch):
                    model.zero_grad()
                    model(batch(comm.rank, step), "l").sum().backward()
        return gradients(model)

    model = TwoHeads()
    (sum(model(batch(rank, 1), "l").sum() for rank in range(2)) / 2).backward()
    for found in on_ranks(2, rank_main):
        assert same(found, gradients(model))


def test_buffers_come_from_a_rank_that_has_data():
    def rank_main(comm):
        norm = torch.nn.BatchNorm1d(4)
        model = DataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), norm), comm)
        norm.momentum = 0.0
        with model.join():
            for _ in range(2 * comm.rank):
                norm.running_mean.fill_(comm.rank)
                model(batch(comm.rank, 0)).sum().backward()
        return norm.running_mean.tolist()

    assert on_ranks(3, rank_main) == [[2] * 4] * 3


def test_accumulation_and_evaluation_within_join():
    expected = [trained_alone([2, 1], True), trained_alone([1, 2], True)]

    def rank_main(comm, batches):
        model = DataParallel(chain(), comm, **TINY)
        with model.join():
            for step in range(batches[comm.rank]):
                model.zero_grad()
                with model.no_sync():
                    (model(batch(comm.rank, step)).sum() / 2).backward()
                with torch.no_grad():
                    model(batch(comm.rank, step))
                (model(batch(comm.rank, step)).sum() / 2).backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= RATE * p.grad
        return [p.detach().clone() for p in model.parameters()]

    for batches, exact in zip([[2, 1], [1, 2]], expected, strict=True):
        assert all(same(found, exact) for found in on_ranks(2, rank_main, batches))


def test_an_exception_within_join_is_raised_and_the_others_learn_of_it():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        with pytest.raises(KeyError if comm.rank else ringreduce.PeerLost), model.join():
            if comm.rank:
                try:
                    raise KeyError("on purpose")
                finally:
                    comm.close()

    on_ranks(2, rank_main)


def test_what_does_not_go_with_join():
    def rank_main(comm):
        with (
            pytest.raises(ValueError, match="logical_shards"),
            DataParallel(chain(), comm, logical_shards=2).join(),
        ):
            pass
        model = DataParallel(chain(), comm)
        model.register_comm_hook(None, lambda state, bucket: None)
        with pytest.raises(ValueError, match="divide_by_initial_world_size must be True"), model.join(False):
            pass

    on_ranks(1, rank_main)
