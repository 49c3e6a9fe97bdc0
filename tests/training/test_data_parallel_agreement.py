"""Ranks whose models differ, and arguments that are wrong."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from torch import nn

import ringreduce
from ringreduce import DataParallel
from tests.training.models import on_ranks


def frozen(layer):
    layer.bias.requires_grad_(False)
    return layer


class Named(nn.Module):
    def __init__(self, name):
        super().__init__()
        setattr(self, name, nn.Linear(2, 2))


USUAL = "float32[3, 2]"


@pytest.mark.parametrize(
    "usual, other, usually, here",
    [
        (
            lambda: nn.Linear(2, 3),
            lambda: nn.Linear(2, 4),
            "parameter 'weight': float32[3, 2]",
            "float32[4, 2]",
        ),
        (
            lambda: nn.Linear(2, 3),
            lambda: nn.Linear(2, 3).double(),
            "parameter 'weight': float32[3, 2]",
            "float64[3",
        ),
        (
            lambda: nn.Linear(2, 3),
            lambda: frozen(nn.Linear(2, 3)),
            "'bias': float32[3];",
            "[3], requires_grad=False",
        ),
        (lambda: nn.Linear(2, 3), lambda: nn.Linear(2, 3, bias=False), "'bias': float32[3]", "nothing more"),
        (
            lambda: Named("a"),
            lambda: Named("b"),
            "parameter 'a.weight': float32",
            "parameter 'b.weight': float32",
        ),
        (
            lambda: nn.BatchNorm1d(2),
            lambda: nn.BatchNorm1d(2, track_running_stats=False),
            "'running_mean'",
            "nothing",
        ),
        (
            lambda: nn.Conv2d(2, 3, 2),
            lambda: nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last),
            "float32[3, 2, 2, 2];",
            "float32[3, 2, 2, 2] with strides [8, 1, 4, 2]",
        ),
    ],
    ids=["shape", "dtype", "requires_grad", "number", "name", "buffer", "strides"],
)
def test_every_rank_learns_what_differs_first(usual, other, usually, here):
    def rank_main(comm):
        with pytest.raises(ringreduce.Error, match="models differ") as caught:
            DataParallel(other() if comm.rank == 1 else usual(), comm)
        comm.barrier()  # the communicator is as good as before
        return str(caught.value)

    messages = on_ranks(3, rank_main)
    assert len(set(messages)) == 1
    most, one = messages[0].split("ranks 0, 2: ")[1].split("rank 1: ")
    assert usually in most and here in one


def test_arguments_that_differ():
    def rank_main(comm):
        with pytest.raises(ringreduce.Error, match=r"ranks 0, 2: bucket_mb: 2; rank 1: bucket_mb: 1$"):
            DataParallel(nn.Linear(2, 2), comm, bucket_mb=1 if comm.rank == 1 else 2)

    on_ranks(3, rank_main)


@pytest.mark.parametrize(
    "module, arguments, message",
    [
        (lambda: nn.ReLU(), {}, "module has no parameter that needs a gradient"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), {}, "module has no parameter that needs a gradient"),
        (lambda: nn.LazyLinear(2), {}, "'weight' has no shape yet"),
        (lambda: nn.Linear(2, 2, device="meta"), {}, "'weight' is on the meta device"),
        (lambda: nn.Linear(2, 2), {"bucket_mb": 0}, "bucket_mb must be positive, not 0"),
        (lambda: nn.Linear(2, 2), {"first_bucket_mb": -1}, "first_bucket_mb must be positive, not -1"),
        (lambda: nn.Linear(2, 2), {"wire": "bf8"}, "wire must be one of .* not 'bf8'"),
        (lambda: nn.Linear(2, 2), {"logical_shards": 3}, "logical_shards must be a multiple .* 2, not 3"),
        (
            lambda: nn.Linear(2, 2),
            {"logical_shards": 2, "wire": "bf16"},
            "logical_shards cannot be combined with wire",
        ),
        (
            lambda: nn.Linear(2, 2),
            {"logical_shards": 2, "static_graph": True},
            "cannot be combined with .*static_graph",
        ),
    ],
)
def test_bad_arguments(module, arguments, message):
    def rank_main(comm):
        with pytest.raises(ValueError, match=message):
            DataParallel(module(), comm, **arguments)
        comm.barrier()

    on_ranks(2, rank_main)


def test_without_a_communicator_it_is_the_world():
    with pytest.raises(ringreduce.Error, match=r"call ringreduce\.init\(\) first"):
        DataParallel(nn.Linear(2, 2))


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_parameters_whose_elements_share_memory(shape):
    def rank_main(comm):
        model = nn.Linear(2, 2)
        model.more = nn.Parameter(torch.ones(1).expand(shape))
        with pytest.raises(ValueError, match="several elements of parameter 'more' share memory"):
            DataParallel(model, comm)
        model.more = nn.Parameter(model.more.detach().clone())
        DataParallel(model, comm)

    on_ranks(2, rank_main)


def test_buffers_whose_elements_share_memory():
    def rank_main(comm):
        model = nn.Linear(2, 2)
        model.register_buffer("mask", torch.ones(1).expand(4))
        with pytest.raises(ValueError, match="share memory"):
            DataParallel(model, comm)
        assert comm.all_reduce(torch.ones(1)).item() == comm.size

    on_ranks(2, rank_main)
