"""Goodput, beside what can be computed."""

import math
from dataclasses import astuple

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan.failures import Failures, best_interval, goodput


def shares(found):
    return astuple(found)[:5]


def test_without_failures_only_checkpoints_take_time():
    found = goodput(8, Failures(mtbf_hours=1e12, checkpoint_s=10, interval_s=90), days=1)
    assert (
        found.useful == pytest.approx(0.9) and found.checkpoints == pytest.approx(0.1) and not found.failures
    )


@pytest.mark.parametrize("interval", [300.0, 1200.0, 5000.0])
def test_checkpoints_cost_what_daly_computed(interval):
    """Of Daly's model with failures that do not hit restarts: a segment takes M (e^((t + d) / M) - 1) on average,
    and each of its e^((t + d) / M) - 1 failures a restart."""
    mean, checkpoint, restart = 3600.0, 60.0, 120.0
    failures = Failures(
        mtbf_hours=100, checkpoint_s=checkpoint, interval_s=interval, restart_s=restart, spares=10**9
    )
    tries = math.expm1((interval + checkpoint) / mean)
    expected = interval / (mean * tries + restart * tries)
    found = goodput(100, failures, days=1000, seed=1)
    assert found.useful == pytest.approx(expected, rel=0.02) and sum(shares(found)) == pytest.approx(1)


def test_the_best_interval_is_better_than_others():
    best = best_interval(60, 3600)
    useful = {
        factor: goodput(
            100, Failures(mtbf_hours=100, checkpoint_s=60, interval_s=factor * best, spares=10**9), 1000
        ).useful
        for factor in (0.4, 1, 2.5)
    }
    assert max(useful, key=useful.__getitem__) == 1


def test_without_spares_training_waits_for_repairs_or_continues_with_fewer_hosts():
    settings = {"mtbf_hours": 1000, "repair_hours": 5}
    waiting = goodput(100, Failures(**settings, checkpoint_s=1), days=100)
    elastic = goodput(100, Failures(**settings, elastic=True, change_s=1), days=100)
    spared = goodput(100, Failures(**settings, checkpoint_s=1, spares=10), days=100)
    assert waiting.standing > 0.2 > 0.05 > elastic.missing > 0
    assert elastic.useful > waiting.useful and spared.useful > waiting.useful
    for found in (waiting, elastic, spared):
        assert sum(shares(found)) == pytest.approx(1)


def test_a_seed_gives_the_same_failures():
    failures = Failures(mtbf_hours=50, checkpoint_s=5, repair_hours=1)
    assert goodput(10, failures, seed=3) == goodput(10, failures, seed=3) != goodput(10, failures, seed=4)
