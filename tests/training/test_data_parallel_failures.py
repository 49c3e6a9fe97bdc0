"""Gradients that do not come, and backward passes that fail."""

from __future__ import annotations

import gc
import importlib.util
import time

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import DataParallel
from tests.training.models import TINY, TwoHeads, batch, chain, gradients, on_ranks, same, with_heads


@pytest.mark.parametrize("lacking", [[0, 1], [1]], ids=["on all ranks", "on one rank"])
def test_a_missing_gradient_is_an_error_on_every_rank_and_training_can_go_on(lacking):
    class Three(TwoHeads):
        def __init__(self):
            super().__init__()
            del self.never

    def rank_main(comm):
        model = DataParallel(Three(), comm, **TINY)
        for _ in range(2):
            with pytest.raises(ringreduce.Error) as caught:
                model(batch(comm.rank), "l" if comm.rank in lacking else "lr").sum().backward()
            for rank in range(2):
                assert (f"rank {rank}: the backward pass computed no" in str(caught.value)) == (
                    rank in lacking
                )
            assert "'right.weight', 'right.bias' (find_unused_parameters=True" in str(caught.value)
        model.zero_grad()
        model(batch(comm.rank)).sum().backward()
        return gradients(model)

    expected = with_heads(["lr", "lr"])[:-2]
    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_a_message_with_many_names_is_cut_short():
    def rank_main(comm):
        layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(30))
        layers.forward = lambda x: layers[0](x)
        model = DataParallel(layers, comm)
        with pytest.raises(ringreduce.Error, match="and 48 more"):
            model(torch.ones(1, 1)).sum().backward()

    on_ranks(1, rank_main)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("layer", [2, 4], ids=["after some buckets", "before any gradient"])
@pytest.mark.parametrize("failing", [[0, 1], [1]], ids=["on all ranks", "on one rank"])
def test_after_an_exception_in_a_backward_pass_the_next_step_is_right(failing, layer):
    def rank_main(comm):
        model = DataParallel(chain(), comm, bucket_mb=1e-9, first_bucket_mb=1e-9)
        for step in range(3):
            model.zero_grad()
            failed = comm.rank in failing
            model.module[layer].register_forward_hook(
                lambda m, x, y, failed=failed: Fails.apply(y) if failed else y
            )
            with pytest.raises(ZeroDivisionError if failed else ringreduce.Error) as caught:
                model(batch(comm.rank, step)).sum().backward()
            if not failed:
                assert "rank 1: its backward pass failed" in str(caught.value)
            model.module[layer]._forward_hooks.clear()
            model.zero_grad()
            model(batch(comm.rank, step)).sum().backward()
        return gradients(model)

    model = chain()
    (sum(model(batch(rank, 2)).sum() for rank in range(2)) / 2).backward()
    assert all(same(found, gradients(model)) for found in on_ranks(2, rank_main))


def test_a_rank_that_dies_in_its_backward_pass_is_an_error_for_the_others_soon():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        model(batch(comm.rank)).sum().backward()
        if comm.rank == 1:
            return None  # ends well, and closes its communicator
        start = time.monotonic()
        with pytest.raises(ringreduce.PeerLost, match="rank 1"):
            model(batch(comm.rank)).sum().backward()
        return time.monotonic() - start

    assert ringreduce.run(rank_main, 2, timeout=100)[0] < 5


def test_sparse_gradients_of_no_embedding_are_refused_by_name():
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 2))

        def forward(self, rows):
            return torch.nn.functional.embedding(rows, self.weight, sparse=True)

    def rank_main(comm):
        model = DataParallel(Rows(), comm)
        with pytest.raises(TypeError, match=r"parameter 'weight' is sparse\. .* with sparse=True"):
            model(torch.tensor([1])).sum().backward()

    on_ranks(1, rank_main)


def unfreeze(model):
    model.module[0].weight.requires_grad_()


def add_a_parameter(model):
    model.module[2].extra = torch.nn.Parameter(torch.ones(2))


def add_a_module(model):
    model.module.append(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("change", "name"), [(unfreeze, "0.weight"), (add_a_parameter, "2.extra"), (add_a_module, "5.weight")]
)
def test_parameters_that_nobody_would_average_are_refused(change, name):
    def rank_main(comm):
        module = chain()
        module[0].weight.requires_grad_(False)
        model = DataParallel(module, comm)
        model(batch(comm.rank)).sum().backward()
        change(model)
        with torch.no_grad():
            model(batch(comm.rank))
        with pytest.raises(ringreduce.Error, match=f"parameter '{name}' needs a gradient, but did not when"):
            model(batch(comm.rank))
        if name != "2.extra":  # which brings no gradient
            del model
            gc.collect()
            DataParallel(module, comm)(batch(comm.rank)).sum().backward()

    on_ranks(2, rank_main)


def test_advice_does_not_name_what_is_set_already():
    def rank_main(comm):
        model = DataParallel(chain(), comm, static_graph=True, **TINY)
        model(batch(comm.rank)).sum().backward()
        x = batch(comm.rank)
        with pytest.raises(ringreduce.Error) as caught:
            model.module[0](x).sum().backward()
        assert "static" in str(caught.value) and "=True" not in str(caught.value)

    on_ranks(2, rank_main)
