"""Predicted steps: exact where they can be computed by hand, and monotone everywhere."""

import math

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan import STRATEGIES, predict, sensitivity, strategy
from ringreduce.studies.plan.strategies import EXACT
from tests.studies.plan.jobs import MB, cluster, job, of_cpus

ALONE = 4 * 0.030 + 0.004


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_of_one_rank_is_its_computation(name):
    found = predict(job(), cluster(), strategy("3d:microbatches=1" if name == "3d" else name), 1)
    assert found.seconds == pytest.approx(ALONE) and found.efficiency == pytest.approx(1)
    assert found.exposed == pytest.approx(0) and found.link_bytes == 0


@pytest.mark.parametrize("name", EXACT)
def test_with_infinite_bandwidth_only_computation_takes_time(name):
    found = predict(job(), cluster(rate=math.inf), strategy(name), 4)
    updated = 0.004 if name in ("ddp", "data_parallel") else 0.001
    assert found.seconds == pytest.approx(0.120 + updated)
    assert found.causes["backward"] == pytest.approx(0.080)


@pytest.mark.parametrize("name", STRATEGIES)
def test_more_bandwidth_never_makes_a_step_longer(name):
    times = [
        predict(job(), cluster(rate=rate), strategy(name), 4).seconds for rate in (1e7, 1e8, 1e9, 1e10, 1e11)
    ]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]


@pytest.mark.parametrize("name", STRATEGIES)
def test_causes_add_up_to_the_step(name):
    found = predict(job(), cluster(rate=3e8, latency_us=50), strategy(name), 4)
    assert sum(found.causes.values()) == pytest.approx(found.seconds)


def test_the_last_bucket_is_exposed_to_the_digit():
    """Two ranks exchange S bytes in S / rate seconds each way: the last bucket, of 2 MiB, follows the backward pass."""
    found = predict(job(), cluster(hosts=2, rate=2 * MB / 0.005), strategy("ddp:bucket_mb=2"), 2)
    assert found.exposed == pytest.approx(0.005, rel=0.02)
    assert found.link_bytes == pytest.approx(8 * MB, rel=0.02)


def test_a_slow_network_sends_all_buckets_one_after_the_other():
    """The first bucket is ready after 4 forward passes and one backward pass; then the link never rests."""
    found = predict(job(), cluster(hosts=2, rate=2 * MB / 0.5), strategy("ddp:bucket_mb=2"), 2)
    assert found.seconds == pytest.approx(0.040 + 0.020 + 4 * 0.5 + 0.004, rel=0.01)


def test_communication_on_shared_cores_slows_the_computation():
    """The core is busy with both, so a step takes their sum. A core more for each rank hides the exchange."""
    shared, apart = (
        predict(job(layers=8), of_cpus(1, 2, cores), strategy("ddp:bucket_mb=2"), 2) for cores in (2, 4)
    )
    exchanged = sum(one.ended - one.began for one in apart.timeline if one.operation.collective)
    assert shared.exposed == pytest.approx(exchanged, rel=0.05) and apart.exposed < 0.3 * shared.exposed


def test_ranks_that_share_a_core_hide_nothing():
    """Each is busy for half of a collective, and the core for all of it."""
    place = of_cpus(1, 4, 2)
    found = predict(job(layers=8), place, strategy("ddp:bucket_mb=2"), 4)
    sent = [one.operation for one in found.timeline if one.operation.collective]
    alone = sum(place.exchange(one.collective, one.nbytes, 4).outcome.seconds for one in sent)
    assert found.exposed == pytest.approx(alone, rel=0.1)


def test_ranks_without_a_core_of_their_own_compute_in_turns():
    found = predict(job(), of_cpus(1, 4, 2, "1000 GB/s"), strategy("ddp"), 4)
    assert found.compute_s == pytest.approx(2 * ALONE) and found.efficiency == pytest.approx(0.5, rel=0.01)


def test_a_faster_device_computes_faster():
    assert predict(job(), cluster(speed=2), strategy("ddp"), 1).seconds == pytest.approx(ALONE / 2)


def test_what_makes_a_step_faster_depends_on_what_bounds_it():
    bound_by_links = sensitivity(job(), cluster(rate=1e7), strategy("ddp"), 4)
    bound_by_computing = sensitivity(job(), cluster(rate=1e12), strategy("ddp"), 4)
    assert bound_by_links["twice the bandwidth"] > 0.8 > 0.1 > bound_by_links["twice the computing speed"]
    assert (
        bound_by_computing["twice the computing speed"]
        > 0.9
        > 0.01
        > bound_by_computing["twice the bandwidth"]
    )
    assert bound_by_links["twice the latency"] <= 0


def test_a_price_is_that_of_all_ranks():
    found = predict(job(), cluster(price_per_hour=3.6), strategy("ddp"), 4)
    assert found.price == pytest.approx(1e6 * 4 * 0.001 * found.seconds / 32)


def test_more_memory_than_there_is_does_not_fit():
    assert not predict(job(), cluster(memory="20 MB"), strategy("ddp"), 4).fits
    assert predict(job(), cluster(memory="20 MB"), strategy("zero1"), 4).fits is False
    assert predict(job(), cluster(memory="40 MB"), strategy("zero1"), 4).fits


def test_hosts_with_unequal_links_wait_for_the_slowest():
    unequal = cluster(hosts=4, rate=[1e9, 1e9, 1e9, 1e7])
    slow = predict(job(), cluster(hosts=4, rate=1e7), strategy("ddp"), 4).seconds
    assert predict(job(), unequal, strategy("ddp"), 4).seconds == pytest.approx(slow, rel=0.05)
    assert predict(job(), unequal, strategy("ddp"), 2).seconds < 0.1 * slow  # the first two
