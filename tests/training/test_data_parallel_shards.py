"""Logical shards: the same bits whatever the number of ranks."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import DataParallel
from tests.training.models import TINY, TwoHeads, gradients, on_ranks, same

SHARDS = 4


def batch(shard: int, step: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(100 * step + shard)
    return torch.randn(3, 4, generator=generator).to(dtype)


def model_of(dtype: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    model = TwoHeads().to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return model


def trained(comm: Any, dtype: Any = torch.float32, heads: str = "llrr", steps: int = 3) -> list[Any]:
    """Gradients of the last step and parameters after it."""
    model = DataParallel(model_of(dtype), comm, logical_shards=SHARDS, find_unused_parameters=True, **TINY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mine = SHARDS // comm.size
    for step in range(steps):
        for shard in range(comm.rank * mine, (comm.rank + 1) * mine):
            with contextlib.nullcontext() if (shard + 1) % mine == 0 else model.no_sync():
                model(batch(shard, step, dtype), heads[shard]).float().square().mean().backward()
        optimizer.step()
    return [p.grad.clone() if p.grad is not None else None for p in model.parameters()] + [
        p.detach().clone() for p in model.parameters()
    ]


def added_in_order(dtype: Any, heads: str = "llrr") -> list[Any]:
    """Gradients of one step, by a single process, shard by shard."""
    totals: list[Any] = []
    for shard in range(SHARDS):
        model = model_of(dtype)
        model(batch(shard, 0, dtype), heads[shard]).float().square().mean().backward()
        own = [torch.zeros(p.shape) if p.grad is None else p.grad.float() for p in model.parameters()]
        totals = own if not totals else [a + b for a, b in zip(totals, own, strict=True)]
    return [(total / SHARDS).to(dtype) for total in totals]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_on_one_two_and_four_ranks(dtype):
    results = {world: on_ranks(world, trained, dtype) for world in (1, 2, 4)}
    for found in results.values():
        assert all(same(one, results[1][0]) for one in found)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_they_are_the_shards_gradients_added_in_order(world):
    expected = added_in_order(torch.float32)
    for found in on_ranks(world, trained, torch.float32, "llrr", 1):
        assert found[6] is None and found[7] is None  # of the layer that nobody uses
        assert same(found[:6], expected[:6])


def test_an_all_reduce_would_not_give_the_same_bits():
    """So that the tests above show something."""

    def rank_main(comm):
        model = DataParallel(model_of(torch.float32), comm, find_unused_parameters=True)
        mine = SHARDS // comm.size
        for shard in range(comm.rank * mine, (comm.rank + 1) * mine):
            with contextlib.nullcontext() if (shard + 1) % mine == 0 else model.no_sync():
                (model(batch(shard, 0), "llrr"[shard]).square().mean() / mine).backward()
        return [p.grad.clone() for p in model.module.body.parameters()]

    assert not same(on_ranks(1, rank_main)[0], on_ranks(2, rank_main)[0])


def test_the_number_of_passes_must_be_right():
    def rank_main(comm):
        model = DataParallel(model_of(torch.float32), comm, logical_shards=4, find_unused_parameters=True)
        with pytest.raises(
            ringreduce.Error, match=r"needs 2 forward and backward passes a step.* this is number 1"
        ):
            model(batch(0, 0))
        for _ in range(2):  # and then all is well
            with model.no_sync():
                model(batch(0, 0), "l").sum().backward()
            with pytest.raises(ringreduce.Error, match="this is number 2"), model.no_sync():
                model(batch(0, 0))
            model(batch(0, 0), "l").sum().backward()
        assert model.module.never.weight.grad is None and model.module.left.weight.grad is not None

    on_ranks(2, rank_main)


def test_a_gradient_that_a_shard_lacks_is_named():
    class Three(TwoHeads):
        def __init__(self):
            super().__init__()
            del self.never

    def rank_main(comm):
        model = DataParallel(Three(), comm, logical_shards=4)
        with model.no_sync():
            model(batch(0, 0), "l" if comm.rank else "lr").sum().backward()
        with pytest.raises(
            ringreduce.Error, match=r"^DataParallel: rank 1: .* no gradient for 'right.weight', 'right"
        ):
            model(batch(0, 0)).sum().backward()

    on_ranks(2, rank_main)


def test_a_hook_of_ones_own_is_refused():
    def rank_main(comm):
        with pytest.raises(ValueError, match="cannot be combined with logical_shards"):
            DataParallel(TwoHeads(), comm, logical_shards=1).register_comm_hook(
                None, lambda state, bucket: None
            )

    on_ranks(1, rank_main)


def test_the_same_bits_whatever_the_number_of_threads_was():
    """torch cuts its sums by its threads, of which a rank alone on a host has more."""
    wide = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 64))

    def rank_main(comm):
        torch.set_num_threads(2 if comm.size == 1 else 1)
        model = DataParallel(copy.deepcopy(wide), comm, logical_shards=2)
        for shard in range(comm.rank * 2 // comm.size, (comm.rank + 1) * 2 // comm.size):
            x = torch.randn(512, 512, generator=torch.Generator().manual_seed(shard))
            with contextlib.nullcontext() if (shard + 1) % (2 // comm.size) == 0 else model.no_sync():
                model(x).square().mean().backward()
        return torch.get_num_threads(), gradients(model)

    alone, halves = on_ranks(1, rank_main)[0], on_ranks(2, rank_main)
    assert alone[0] == 1 and all(same(alone[1], found) for _, found in halves)
