"""DataParallel with models, outputs and dtypes of all kinds, and in unusual uses."""

from __future__ import annotations

import copy
import gc
import importlib.util
import io
import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from ringreduce import DataParallel
from tests.training.models import TINY, alone, batch, chain, gradients, on_ranks, same, whole_


@dataclass
class Answer:
    logits: Any
    more: Any


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "pack, unpack",
    [
        (lambda y: {"a": [y], "b": 1}, lambda o: o["a"][0]),
        (lambda y: Answer(y, None), lambda o: o.logits),
        (lambda y: Pair((y,), "text"), lambda o: o.first[0]),
        (lambda y: type("Own", (), {"y": y}), lambda o: o.y),
    ],
    ids=["dict", "dataclass", "named tuple", "unknown"],
)
@pytest.mark.parametrize("unused", [False, True])
def test_outputs_of_any_kind(pack, unpack, unused):
    expected = alone(chain(), world=2)

    class Packing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chain = chain()

        def forward(self, *, x):
            return pack(self.chain(x))

    def rank_main(comm):
        model = DataParallel(Packing(), comm, find_unused_parameters=unused, **TINY)
        for _ in range(2):
            model.zero_grad()
            unpack(model(x=batch(comm.rank))).sum().backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_parameters_of_other_dtypes(dtype):
    dtype = getattr(torch, dtype)

    def rank_main(comm):
        model = DataParallel(torch.nn.Linear(4, 2).to(dtype), comm)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank, dtype=dtype)).sum().backward()
        return gradients(model)

    plain = torch.nn.Linear(4, 2).to(dtype)
    expected = alone(plain, world=2, dtype=dtype)
    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_parameters_of_several_dtypes_have_buckets_of_their_own():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (
                torch.nn.Linear(4, 4),
                torch.nn.Linear(4, 4).double(),
                torch.nn.Linear(4, 2),
            )
            whole_(self.parameters(), 0)

        def forward(self, x):
            return self.c(self.b(self.a(x).double()).float())

    expected = alone(Mixed(), world=2)

    def rank_main(comm):
        model = DataParallel(Mixed(), comm)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank)).sum().backward()
        assert [bucket.buffer.dtype for bucket in model._reducer.buckets] == [torch.float64, torch.float32]
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


@pytest.mark.parametrize("wire", ["bf16", "fp16", "int8", "fp8"])
def test_gradients_travel_as_fewer_bytes_but_stay_float32(wire):
    def rank_main(comm):
        layer = torch.nn.Linear(300, 1, bias=False)
        model = DataParallel(layer, comm, wire=wire)
        x = torch.linspace(0.1, 1.7, 300) * (comm.rank + 1)
        model(x).sum().backward()
        return layer.weight.grad[0].clone()

    exact = torch.linspace(0.1, 1.7, 300) * 1.5
    first, second = on_ranks(2, rank_main)
    assert first.dtype == torch.float32 and torch.equal(first, second)
    assert not torch.equal(first, exact)  # it was rounded on its way
    assert torch.allclose(first, exact, rtol=0.1, atol=0.02)


def test_wire_leaves_dtypes_alone_that_it_does_not_narrow():
    expected = alone(chain(dtype=torch.float64), world=2, dtype=torch.float64)

    def rank_main(comm):
        model = DataParallel(chain(dtype=torch.float64), comm, wire="bf16", **TINY)
        model(batch(comm.rank, dtype=torch.float64)).sum().backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_autocast():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        with torch.autocast("cpu", torch.bfloat16):
            y = model(batch(comm.rank))
            assert y.dtype == torch.bfloat16
            y.float().sum().backward()
        return gradients(model)

    expected = None
    for rank in range(2):
        model = chain()
        with torch.autocast("cpu", torch.bfloat16):
            model(batch(rank)).float().sum().backward()
        own = gradients(model)
        expected = own if expected is None else [(a + b) / 2 for a, b in zip(expected, own, strict=True)]
    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_shared_and_frozen_parameters_and_other_strides():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
            self.one, self.two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.two.weight = self.one.weight
            self.one.bias.requires_grad_(False)
            whole_(self.parameters(), 0)

        def forward(self, x):
            return self.two(self.one(self.conv(x.view(-1, 2, 2, 4)[..., :2]).flatten(1)))

    expected = alone(Tied(), world=2)

    def rank_main(comm):
        model = DataParallel(Tied(), comm, **TINY)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank)).sum().backward()
        assert model.module.conv.weight.grad.stride() == model.module.conv.weight.stride()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


# --- unusual uses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forward_without_gradients_talks_to_nobody(mode):
    def rank_main(comm):
        model = DataParallel(torch.nn.Sequential(chain(), torch.nn.BatchNorm1d(2)), comm)
        if comm.rank == 0:
            with mode():
                return model(batch(0)).requires_grad
        return None

    assert on_ranks(2, rank_main) == [False, None]


def test_several_forward_passes_before_one_backward_pass():
    model = chain()
    (sum(model(batch(rank, step)).sum() for rank in range(2) for step in range(2)) / 2).backward()
    expected = gradients(model)

    def rank_main(comm):
        ours = DataParallel(chain(), comm, **TINY)
        for _ in range(2):
            ours.zero_grad()
            (ours(batch(comm.rank, 0)).sum() + ours(batch(comm.rank, 1)).sum()).backward()
        return gradients(ours)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_buffers_may_change_between_a_forward_pass_and_its_backward_pass():
    def rank_main(comm):
        model = DataParallel(torch.nn.BatchNorm1d(4), comm)
        (model(batch(comm.rank, 0)).sum() + model(batch(comm.rank, 1)).sum()).backward()
        return model.module.bias.grad.tolist()

    assert on_ranks(2, rank_main) == [[16] * 4] * 2


def test_a_second_backward_pass_through_the_same_graph():
    expected = alone(chain(), world=2)

    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        loss = model(batch(comm.rank)).sum()
        loss.backward(retain_graph=True)
        model.zero_grad()
        loss.backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_gradients_of_inputs_are_no_backward_pass_of_ours():
    """As in a gradient penalty."""

    def penalty(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return model(x).sum() + slope.square().sum()

    model = chain()
    (sum(penalty(model, batch(rank)) for rank in range(2)) / 2).backward()
    expected = gradients(model)

    def rank_main(comm):
        ours = DataParallel(chain(), comm, **TINY)
        penalty(ours, batch(comm.rank)).backward()
        return gradients(ours)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_the_module_can_be_saved_and_copied_and_the_wrapper_says_that_it_cannot():
    def rank_main(comm):
        model = DataParallel(chain(), comm)
        model(batch(comm.rank)).sum().backward()
        for attempt in (copy.deepcopy, pickle.dumps, lambda it: torch.save(it, io.BytesIO())):
            with pytest.raises(TypeError, match=r"copy or save its \.module"):
                attempt(model)
        copied = copy.deepcopy(model.module)
        copied(batch(0)).sum().backward()  # without our hooks: nobody else takes part
        again = pickle.loads(pickle.dumps(model.module))
        assert list(again.state_dict()) == list(chain().state_dict()) and again[0].weight.grad is None

    on_ranks(1, rank_main)


def test_a_dropped_wrapper_leaves_the_module_alone():
    def rank_main(comm):
        module = chain()
        DataParallel(module, comm)
        gc.collect()
        assert all(not p._post_accumulate_grad_hooks for p in module.parameters())
        again = DataParallel(module, comm)
        again(batch(comm.rank)).sum().backward()
        return gradients(module)

    expected = alone(chain(), world=2)
    assert all(same(found, expected) for found in on_ranks(2, rank_main))
