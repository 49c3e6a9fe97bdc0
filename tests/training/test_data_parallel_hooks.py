"""Communication hooks, written for torch DDP or for ours."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import DataParallel
from tests.training.models import TINY, batch, chain, gradients, on_ranks, same


def average() -> list[Any]:
    model = chain()
    (sum(model(batch(rank)).sum() for rank in range(2)) / 2).backward()
    return gradients(model)


def completed(value: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(value)
    return future


def in_place(comm, bucket):
    return completed(comm.all_reduce(bucket.buffer(), "avg"))


def elsewhere(comm, bucket):
    return completed([comm.all_reduce(bucket.buffer().clone(), "avg")])


def replaced(comm, bucket):
    bucket.set_buffer(bucket.buffer().double())
    return completed(comm.all_reduce(bucket.buffer(), "avg"))


def chained(comm, bucket):
    return completed(bucket.buffer() * 2).then(lambda doubled: comm.all_reduce(doubled.value(), "avg") / 2)


@pytest.mark.parametrize("hook", [in_place, elsewhere, replaced, chained])
def test_a_hook_averages(hook):
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        model.register_comm_hook(comm, hook)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank)).sum().backward()
        buckets = model.timings.buckets
        assert len(buckets) > 2 and all(0 < bucket.began <= bucket.ended for bucket in buckets)
        return gradients(model)

    assert all(same(found, average()) for found in on_ranks(2, rank_main))


def test_what_a_hook_sees():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        seen = []

        def hook(state, bucket):
            assert state == "state"
            shapes = [parameter.shape for parameter in bucket.parameters()]
            assert [gradient.shape for gradient in bucket.gradients()] == shapes
            flat = torch.cat([gradient.flatten() for gradient in bucket.gradients()])
            assert torch.equal(flat, bucket.buffer())
            seen.append((bucket.index(), bucket.is_last()))
            return in_place(comm, bucket)

        model.register_comm_hook("state", hook)
        model(batch(comm.rank)).sum().backward()
        count = len(seen)
        assert count > 2 and seen == [(index, index == count - 1) for index in range(count)]

    on_ranks(2, rank_main)


def test_torchs_own_hook_runs_on_it():
    """PowerSGD's warm-up and the like only need what torch's DDP gives them."""
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        model.register_comm_hook(None, noop_hook)
        model(batch(comm.rank)).sum().backward()
        return gradients(model)

    for rank, found in enumerate(on_ranks(2, rank_main)):
        alone = chain()
        alone(batch(rank)).sum().backward()
        assert same(found, gradients(alone))


def test_a_future_that_never_completes_is_an_error():
    def rank_main(comm):
        model = DataParallel(chain(), comm)
        model.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
        start = time.monotonic()
        with pytest.raises(ringreduce.TimeoutError, match=r"future is not complete after 0\.2 s"):
            model(batch(comm.rank)).sum().backward()
        assert time.monotonic() - start < 5

    on_ranks(1, rank_main, timeout=0.2)


def test_what_a_hook_raises_is_raised():
    def rank_main(comm):
        model = DataParallel(chain(), comm)
        model.register_comm_hook(None, lambda state, bucket: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(batch(comm.rank)).sum().backward()
        model.register_comm_hook(None, lambda state, bucket: bucket.buffer())
        with pytest.raises(TypeError, match=r"must return a torch\.futures\.Future, not tensor"):
            model(batch(comm.rank)).sum().backward()

    on_ranks(1, rank_main)


def test_a_future_that_fails_raises_what_it_holds():
    def rank_main(comm):
        failed: Any = torch.futures.Future()
        failed.set_exception(KeyError("in the future"))
        model = DataParallel(chain(), comm)
        model.register_comm_hook(None, lambda state, bucket: failed)
        with pytest.raises(KeyError, match="in the future"):
            model(batch(comm.rank)).sum().backward()

    ringreduce.run(rank_main, 1, timeout=100)
