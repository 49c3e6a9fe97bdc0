"""Which parameters share a bucket, and what is sent before training begins."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from hypothesis import given
from hypothesis import strategies as st

from ringreduce.training.foundation import broadcast
from ringreduce.training.foundation.filling import assign
from tests.training.models import on_ranks


def test_a_bucket_is_full_once_it_holds_its_limit():
    assert assign([4, 3, 2, 1, 0], [100, 100, 30, 5, 5], "aaaaa", first=10, limit=30) == [
        [4, 3],
        [2],
        [1],
        [0],
    ]


def test_buckets_get_smaller_towards_the_end():
    cut = assign(range(32), [1] * 32, "a" * 32, first=1, limit=8)
    assert [len(bucket) for bucket in cut] == [1, 8, 8, 8, 4, 2, 1]


def test_kinds_do_not_share_buckets_and_the_one_that_is_ready_first_comes_first():
    assert assign([0, 1, 2, 3], [4, 4, 4, 4], "abba", first=8, limit=8) == [[1, 2], [0, 3]]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from("ab")), min_size=1).flatmap(
        lambda parameters: st.tuples(st.just(parameters), st.permutations(range(len(parameters))))
    ),
    st.integers(1, 60),
    st.integers(1, 120),
)
def test_every_parameter_is_in_one_bucket_in_order(parameters_and_order, first, limit):
    parameters, order = parameters_and_order
    nbytes, kinds = [size for size, _ in parameters], [kind for _, kind in parameters]
    buckets = assign(order, nbytes, kinds, first, limit)
    assert sorted(number for bucket in buckets for number in bucket) == list(range(len(parameters)))
    assert [bucket[-1] for bucket in buckets] == sorted((bucket[-1] for bucket in buckets), key=order.index)
    seen: set[str] = set()
    for bucket in buckets:
        assert len({kinds[number] for number in bucket}) == 1
        assert list(bucket) == sorted(bucket, key=order.index)
        without_last = sum(nbytes[number] for number in bucket[:-1])
        assert without_last < (limit if kinds[bucket[0]] in seen else first)
        seen.add(kinds[bucket[0]])


@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
def test_tensors_of_any_dtype_and_strides_are_sent_together(at_once, monkeypatch):
    monkeypatch.setattr(broadcast, "AT_ONCE", at_once)
    dtypes = [
        torch.float32,
        torch.bool,
        torch.int64,
        torch.bfloat16,
        torch.complex128,
        torch.uint8,
        torch.float64,
    ]

    def rank_main(comm):
        tensors = [torch.full((3, i), comm.rank, dtype=dtype) for i, dtype in enumerate(dtypes)]
        tensors.append(torch.full((4, 3), comm.rank).t())
        tensors.append(torch.tensor(float(comm.rank)))
        send = broadcast.Broadcast(comm)
        send(tensors, root=2)
        assert all((tensor == torch.tensor(2, dtype=tensor.dtype)).all() for tensor in tensors)
        others = [torch.full((5,), comm.rank + step) for step in range(2)]
        for tensor in others:  # of another kind than before, and then of the same
            send([tensor], root=0)
        assert [tensor.tolist() for tensor in others] == [[0] * 5, [1] * 5]

    on_ranks(3, rank_main)
