"""Shares of a batch that follow the ranks' speed: exact gradients, the same global batches, and no flapping."""

from __future__ import annotations

import importlib.util
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import ringreduce
from ringreduce import DataParallel
from ringreduce.balance import Balance, equal_shares, fair_shares
from ringreduce.balance.batch_shares import step_time
from ringreduce.train.data import ShardedSampler
from tests.training.models import TINY, chain, gradients, on_ranks, same, whole


def shares_over(comm: Any, balance: Balance, costs: Any, steps: int) -> list[tuple[int, ...]]:
    """The shares of each step, if samples cost this much on each rank: costs(step) are those of all ranks."""
    found = []
    for step in range(steps):
        found.append(balance.shares)
        balance.step(balance.shares[comm.rank] * costs(step)[comm.rank])
    return found


def changes(shares: list[tuple[int, ...]]) -> int:
    return sum(one != other for one, other in itertools.pairwise(shares))


# --- shares --------------------------------------------------------------------------------------------------


def test_equal_shares():
    assert equal_shares(8, 4) == [2, 2, 2, 2]
    assert equal_shares(7, 4) == [2, 2, 2, 1]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0.1, 20), min_size=1, max_size=3), st.integers(0, 12), st.integers(1, 3))
def test_no_shares_are_faster(costs, extra, smallest):
    batch = smallest * len(costs) + extra
    found = fair_shares(batch, costs, smallest)
    assert sum(found) == batch
    assert min(found) >= smallest
    every = itertools.product(range(smallest, batch + 1), repeat=len(costs))
    best = min(step_time(shares, costs) for shares in every if sum(shares) == batch)
    assert step_time(found, costs) == pytest.approx(best)


def test_no_rank_gets_nothing():
    assert fair_shares(8, [1, 1, 1, 1000]) == [3, 2, 2, 1]
    with pytest.raises(ValueError, match="batch must be at least 1 for each of 4 ranks, not 3"):
        fair_shares(3, [1, 1, 1, 1])
    with pytest.raises(ValueError, match="costs must be positive, not 0 for rank 1"):
        fair_shares(3, [1, 0])


# --- gradients and samples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [[2, 2, 2, 2], [1, 1, 2, 4], [4, 1, 2, 1]])
def test_gradients_are_those_of_equal_shares(shares):
    """Bit for bit: inputs are whole numbers, and all divisors powers of two."""
    inputs = whole(8, 4, seed=1)
    model = chain()
    model(inputs).sum(1).mean().backward()
    expected = gradients(model)

    def train(comm):
        model = DataParallel(chain(), comm, **TINY)
        balance = Balance(comm, batch=8)
        mine = inputs.split(shares)[comm.rank]
        (model(mine).sum(1).mean() * balance.weight(len(mine))).backward()
        return gradients(model)

    for found in on_ranks(4, train):
        assert same(found, expected)


plans = st.lists(st.permutations([1, 2, 5]), min_size=4, max_size=4)


@settings(deadline=None, max_examples=30)
@given(plans, st.integers(0, 6), st.integers(0, 9))
def test_global_batches_do_not_depend_on_the_shares(plan, first, seed):
    more = {"seed": seed, "first_batch": first}
    alone = list(itertools.islice(ShardedSampler(30, 8, **more), 4))
    ranks = [
        iter(ShardedSampler(30, 8, rank, 3, shares=lambda step: plan[step - first], **more))
        for rank in range(3)
    ]
    for batch, shares in zip(alone, plan, strict=True):
        parts = [next(rank) for rank in ranks]
        assert [len(part) for part in parts] == shares
        assert [index for part in parts for index in part] == batch


def test_micro_batches_of_a_share_differ_by_at_most_one_sample():
    sampler = iter(ShardedSampler(30, 8, 1, 2, micro_batches=2, shares=lambda step: (3, 5)))
    assert [len(next(sampler)) for _ in range(4)] == [3, 2, 3, 2]


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ((8, 0), "shares: rank 1 has 0 samples for 1 micro-batches"),
        ((4, 5), r"shares \(4, 5\) do not divide 8 samples among 2 ranks"),
        ((8,), r"shares \(8,\) do not divide 8 samples among 2 ranks"),
    ],
)
def test_shares_that_do_not_fit_are_refused(shares, text):
    with pytest.raises(ValueError, match=text):
        next(iter(ShardedSampler(30, 8, 0, 2, shares=lambda step: shares)))


# --- following the ranks' speed ------------------------------------------------------------------------------


def test_shares_follow_a_rank_that_is_slowed_and_recovers():
    def costs(step):
        return [1, 1, 1, 3 if 50 <= step < 150 else 1]

    found = on_ranks(4, lambda comm: shares_over(comm, Balance(comm, batch=40), costs, 260))
    assert all(shares == found[0] for shares in found)
    assert {*found[0][:50]} == {(10, 10, 10, 10)}
    assert step_time(found[0][149], costs(149)) <= 1.05 * 12
    assert step_time(found[0][259], costs(259)) <= 1.05 * 10
    assert all(sum(shares) == 40 for shares in found[0])


@pytest.mark.parametrize("slow", [1, 3])
def test_noise_does_not_move_the_shares(slow):
    draw = torch.Generator().manual_seed(0)
    noise = (1 + 0.2 * torch.rand(1000, 4, generator=draw)).tolist()

    def costs(step):
        return [cost * factor for cost, factor in zip([1, slow, 1, 1], noise[step], strict=True)]

    shares = on_ranks(4, lambda comm: shares_over(comm, Balance(comm, batch=64), costs, 1000))[0]
    assert changes(shares) <= (0 if slow == 1 else 4)
    assert changes(shares[100:]) == 0


def test_a_pause_of_a_rank_does_not_move_the_shares():
    def costs(step):
        return [100 if step % 10 == 3 else 1, 1]

    assert changes(on_ranks(2, lambda comm: shares_over(comm, Balance(comm, batch=8), costs, 60))[0]) == 0


def test_steps_may_differ_in_their_work_per_sample():
    """For example in the length of their sequences."""

    def costs(step):
        return [1 + step % 7, 2 * (1 + step % 7)]

    assert on_ranks(2, lambda comm: shares_over(comm, Balance(comm, batch=12), costs, 60))[0][-1] == (8, 4)


def test_what_is_measured_counts():
    def train(comm):
        balance = Balance(comm, batch=12, every=5)
        for _ in range(5):
            with balance.measure():
                time.sleep(0.05 * comm.rank)  # busy cores change this least
            balance.step()
        return balance.shares

    first, second = on_ranks(2, train)
    assert first == second
    assert first[0] > first[1]


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_loader_may_take_batches_ahead(ahead):
    def costs(step):
        return [1, 3]

    def train(comm):
        balance = Balance(comm, batch=8, every=5, ahead=ahead)
        data = TensorDataset(torch.arange(80))
        sampler = ShardedSampler(80, 8, comm.rank, 2, shares=balance.shares_at)
        batches = iter(DataLoader(data, batch_sampler=sampler))
        taken = [next(batches)[0].tolist() for _ in range(ahead)]
        for step in range(20):
            taken.append(next(batches)[0].tolist())
            assert len(taken[step]) == balance.shares[comm.rank]
            balance.step(balance.shares[comm.rank] * costs(step)[comm.rank])
        return taken[:20]

    first, second = on_ranks(2, train)
    alone = list(itertools.islice(ShardedSampler(80, 8), 20))
    assert [one + other for one, other in zip(first, second, strict=True)] == alone
    assert [len(one) for one in first] == [4] * (5 + ahead) + [6] * (15 - ahead)


def test_a_loader_that_takes_batches_too_early_is_told():
    balance = Balance(ringreduce.local_group(1)[0], batch=8)
    sampler = iter(ShardedSampler(80, 8, shares=balance.shares_at))
    next(sampler)
    with pytest.raises(ringreduce.Error, match="the data loader takes batch 1 in step 0, before"):
        next(sampler)


# --- saving, and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_resumed_run_has_the_same_shares(ahead):
    def costs(step):
        return [1, 1.5, 3 if step > 20 else 1]

    def resumed(comm):
        first, second = (Balance(comm, batch=60, ahead=ahead) for _ in range(2))
        begin = shares_over(comm, first, costs, 30)
        second.load_state_dict(first.state_dict())
        assert second.steps == 30
        return begin + shares_over(comm, second, lambda step: costs(step + 30), 40)

    whole_run = on_ranks(3, lambda comm: shares_over(comm, Balance(comm, batch=60, ahead=ahead), costs, 70))
    assert on_ranks(3, resumed) == whole_run
    assert changes(whole_run[0]) > 1


def test_other_numbers_of_ranks_begin_with_equal_shares():
    saved = on_ranks(2, lambda comm: _after(comm, [1, 3]))[0]
    assert saved["plan"][-1][1] == [9, 3]

    def load(comm):
        balance = Balance(comm, batch=12)
        balance.load_state_dict(saved)
        return balance.steps, balance.shares

    assert on_ranks(3, load) == [(20, (4, 4, 4))] * 3


def _after(comm: Any, costs: list[float]) -> dict[str, Any]:
    balance = Balance(comm, batch=12)
    shares_over(comm, balance, lambda step: costs, 20)
    return balance.state_dict()


def test_states_that_do_not_fit_are_refused():
    comm = ringreduce.local_group(1)[0]
    balance = Balance(comm, batch=12, smallest=2)
    with pytest.raises(ValueError, match="saved is for a batch of 8, not of 12"):
        balance.load_state_dict(Balance(comm, batch=8).state_dict())
    saved = {**balance.state_dict(), "plan": [[0, [0]]]}
    with pytest.raises(ValueError, match="saved gives rank 0 0 samples, and the smallest share is 2"):
        balance.load_state_dict(saved)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 1}, "batch must give each of the 2 ranks 1 or more samples, not be 1"),
        ({"batch": 5, "smallest": 3}, "batch must give each of the 2 ranks 3 or more samples, not be 5"),
        ({"batch": 8, "every": 0}, "every must be at least 1, not 0"),
        ({"batch": 8, "smallest": 0}, "smallest must be at least 1, not 0"),
        ({"batch": 8, "ahead": -1}, "ahead must be at least 0, not -1"),
        ({"batch": 8, "tolerance": 1}, "tolerance must be at least 0 and less than 1, not 1"),
    ],
)
def test_bad_arguments_are_named(options, text):
    def refuse(comm):
        with pytest.raises(ValueError, match=text):
            Balance(comm, **options)

    on_ranks(2, refuse)


def test_ranks_with_other_arguments_are_named():
    def refuse(comm):
        with pytest.raises(
            ringreduce.Error, match="The first difference: rank 0: batch: 8; rank 1: batch: 9"
        ):
            Balance(comm, batch=8 + comm.rank)

    on_ranks(2, refuse)


def test_a_step_without_a_measurement_is_refused():
    balance = Balance(ringreduce.local_group(1)[0], batch=8)
    with pytest.raises(ValueError, match=r"seconds must be positive, not 0\.0; use measure\(\)"):
        balance.step()


# --- the example ---------------------------------------------------------------------------------------------


def test_the_example_trains_alike_on_ranks_of_unequal_speed(capfd):
    path = Path(__file__).resolve().parents[2] / "examples/bucketed_sequences.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def run(comm, slow_rank):
        torch.set_num_threads(1)
        return example.train(comm, 40, 16, slow_rank)

    (alone,) = ringreduce.run(run, 1, None, timeout=100)
    capfd.readouterr()
    found = ringreduce.run(run, 2, 1, timeout=100)
    assert found[0] == found[1] == pytest.approx(alone, rel=1e-3)
    assert alone[-1] < alone[0] / 2
    first, *_, last = [line.partition("ranks ")[2] for line in capfd.readouterr().out.splitlines()]
    assert min(map(int, last.strip("()").split(", "))) < 8, (first, last)
