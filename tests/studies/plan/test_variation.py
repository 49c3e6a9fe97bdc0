"""Ranks that are not equally fast."""

import math

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan import Cluster, Variation, predict, strategy
from ringreduce.studies.simulate import Flat, Network
from tests.studies.plan.jobs import job


def cluster(hosts=4, **variation):
    return Cluster(
        Network(topology=Flat(hosts=hosts, rate=math.inf, latency_us=0)), variation=Variation(**variation)
    )


def step(name, hosts=4, **variation):
    return predict(job(), cluster(hosts, **variation), strategy(name), hosts).seconds


def test_the_slowest_of_exponential_times_is_a_harmonic_number():
    """With a deviation of the mean, gamma is exponential: the largest of n has the mean 1 + 1/2 + ... + 1/n."""
    assert Variation(jitter=1).slowest(10) == pytest.approx(sum(1 / n for n in range(1, 11)), rel=0.1)


def test_without_differences_nothing_changes():
    assert Variation().slowest(100) == Variation().balanced(100) == 1
    assert step("ddp") == predict(job(), cluster(), strategy("ddp"), 4).seconds


def test_a_slow_rank_makes_all_slow():
    assert step("ddp", slow_share=1, slow_times=3) == pytest.approx(3 * step("ddp"))


def test_more_ranks_have_a_slower_slowest_one():
    times = [step("ddp", hosts, jitter=0.1) for hosts in (2, 8, 64)]
    assert times == sorted(times) and times[0] < times[-1]


def test_delays_average_out_between_synchronisations():
    assert (
        step("local_sgd:every=100", jitter=0.3) < 1.1 * step("local_sgd:every=100") < step("ddp", jitter=0.3)
    )


def test_lasting_differences_do_not_average_out_but_shares_can_follow_them():
    lasting = {"slow_share": 0.25, "slow_times": 3.0, "seed": 1}
    assert step("local_sgd:every=100", 64, **lasting) > 2.5 * step("local_sgd:every=100", 64)
    for name in ("balanced", "local_sgd:every=100:adaptive=true", "stale_parameter_server:shared=true"):
        # Three of four ranks make 1, the other a third: together 3 1/3 of 4.
        assert step(name, 64, **lasting) == pytest.approx(1.2 * step(name, 64), rel=0.05)


def test_a_seed_gives_the_same_times():
    assert Variation(jitter=0.2, seed=1).slowest(9) == Variation(jitter=0.2, seed=1).slowest(9)
    assert Variation(jitter=0.2, seed=1).slowest(9) != Variation(jitter=0.2, seed=2).slowest(9)
