"""Scaling curves, Pareto fronts, and the search for the best settings."""

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan.prediction import Simulations, predict
from ringreduce.studies.plan.scaling import best, front, scaling, worlds
from ringreduce.studies.plan.search import search
from ringreduce.studies.plan.strategies import strategy
from tests.studies.plan.jobs import MB, cluster, job, of_cpus


@pytest.mark.parametrize(
    ("each", "largest", "expected"),
    [
        (1, 8, [1, 2, 4, 8]),
        (8, 24, [1, 2, 4, 8, 16, 24]),
        (6, 6, [1, 2, 4, 6]),
        (8, 4, [1, 2, 4]),
        (3, 1, [1]),
    ],
)
def test_curves_double_inside_a_host_and_then_in_hosts(each, largest, expected):
    assert worlds(of_cpus(4, each, each), largest) == expected


def test_a_curve_says_which_points_are_impossible():
    found, impossible = scaling(
        job(), of_cpus(2, 4, 4), {"ddp": strategy("ddp")}, [1, 4, 6, 8], Simulations(of_cpus(2, 4, 4))
    )
    assert [one.world for _, one in found] == [1, 4, 8]
    assert len(impossible) == 1 and impossible[0].startswith("ddp on 6 ranks: world must be a multiple")


def test_the_front_holds_what_nothing_cheaper_beats():
    texts = ["ddp", "zero1", "zero2", "fsdp2", "fsdp2:prefetch=false"]
    where = cluster(rate=1e8)
    found = [(text, predict(job(), where, strategy(text), 4)) for text in texts]
    kept = front(found, lambda one: one.memory.total)
    assert kept
    for place, (_, one) in enumerate(found):
        better = [
            other for _, other in found if other.memory.total <= one.memory.total and other.rate > one.rate
        ]
        assert (place in kept) <= (not better)
        covered = [found[each][1] for each in kept]
        assert any(each.memory.total <= one.memory.total and each.rate >= one.rate for each in covered)


def test_what_does_not_fit_is_not_on_the_front_and_not_the_best():
    where = cluster(rate=1e8, memory="30 MB")
    found = [(text, predict(job(), where, strategy(text), 4)) for text in ("ddp", "fsdp2")]
    assert [one.fits for _, one in found] == [False, True]
    assert front(found, lambda one: one.memory.total) == [1] and best(found) == found[1]
    assert best(found[:1]) is None


def test_the_search_finds_the_best_of_all_settings():
    where, model = cluster(rate=1e8), job(layers=6, nbytes=MB)
    tried = search(model, where, ["data_parallel"], 4)
    sizes = [1, 2, 4, 8]
    every = [
        predict(model, where, strategy(f"data_parallel:bucket_mb={size}:first_bucket_mb={first}"), 4)
        for size in sizes
        for first in sizes
    ]
    assert tried.sizes == sizes and tried.settings == len(tried.fitting) == 16
    assert tried.best[0][1].seconds == min(one.seconds for one in every)
    assert [one.seconds for _, one in tried.fitting] == sorted(one.seconds for one in every)


def test_the_search_keeps_what_is_given_and_stays_within_the_memory():
    where = cluster(rate=1e8, memory="30 MB")
    tried = search(job(), where, ["fsdp2:reshard=true:accumulation=2", "ddp:bucket_mb=2"], 4)
    assert all("reshard=true:accumulation=2" in text for text, _ in tried.fitting)
    assert all(one.memory.total <= 30e6 and one.strategy.accumulation == 2 for _, one in tried.fitting)
    assert tried.settings == 2 + 2 * len(tried.sizes) and tried.too_large == 2 * len(tried.sizes)
    assert f"{tried.too_large} need too much memory; 2 predicted. Not searched" in tried.summary()


def test_a_search_without_a_fitting_setting_says_what_is_needed():
    with pytest.raises(
        ValueError, match=r"device\.memory: no setting fits; the smallest needs .* GB on 4 ranks"
    ):
        search(job(), cluster(memory="1 MB"), ["ddp", "fsdp2"], 4)


def test_the_search_divides_the_model_in_all_ways_and_keeps_the_samples():
    where, model = of_cpus(2, 4, 4), job(layers=6, output=MB)
    tried = search(model, where, ["3d:schedule=1f1b:zero=0"], 8)
    found = {text.removeprefix("3d:schedule=1f1b:zero=0:"): one for text, one in tried.fitting}
    sizes = {(tensor, stages) for tensor in (1, 2, 4) for stages in (1, 2, 4) if tensor * stages <= 8}
    assert set(found) == {f"tensor={t}:stages={s}:microbatches={t * s}" for t, s in sizes}
    assert {one.samples for one in found.values()} == {8 * model.samples}
    given = search(model, where, ["3d:tensor=2:microbatches=4"], 8)
    assert all("tensor=2:microbatches=4" in text for text, _ in given.fitting)
    assert given.settings == 3 * 4  # stages, schedules and zero
    assert [one.rate for _, one in given.fitting] == sorted(
        (one.rate for _, one in given.fitting), reverse=True
    )
