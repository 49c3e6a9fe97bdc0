"""Tensor, pipeline and data parallelism together."""

import math

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan import Cluster, predict, strategy
from ringreduce.studies.plan.operations import Group
from ringreduce.studies.simulate import Flat, Network
from tests.studies.plan.jobs import MB, cluster, job


def of_hosts(hosts, ranks, rate):
    return Cluster(Network(topology=Flat(hosts=hosts, ranks_per_host=ranks, rate=rate, latency_us=0)))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (2, 8), (4, 4), (4, 2), (4, 16)])
def test_a_pipeline_waits_for_as_many_microbatches_as_it_has_other_stages(schedule, stages, microbatches):
    made = job(layers=8, update=0.0)
    found = predict(
        made, cluster(hosts=stages, rate=math.inf),
        strategy(f"3d:stages={stages}:microbatches={microbatches}:schedule={schedule}"), stages,
    )  # fmt: skip
    assert found.seconds == pytest.approx((microbatches + stages - 1) * 8 * 0.030 / stages)
    assert found.efficiency == pytest.approx(microbatches / (microbatches + stages - 1))
    assert found.samples == 8 * microbatches


def test_1f1b_keeps_the_activations_of_as_many_microbatches_as_stages():
    made = job(layers=8)
    kept = {
        schedule: strategy(f"3d:stages=4:microbatches=16:schedule={schedule}").memory(made, 4).activations
        for schedule in ("gpipe", "1f1b")
    }
    assert kept == {"gpipe": 16 * 2000, "1f1b": 4 * 2000}


def test_a_layer_is_divided_and_its_results_are_added_up():
    """4 layers of 2 passes: each adds up 1 MiB on two ranks, which takes MiB / rate."""
    made = job(output=MB)
    found = predict(made, cluster(hosts=2, rate=MB / 0.01), strategy("3d:tensor=2:microbatches=1"), 2)
    assert found.seconds == pytest.approx(4 * 0.030 / 2 + 8 * 0.01 + 0.004 / 2, rel=0.01)
    assert found.memory.parameters == 4 * MB and found.memory.optimizer == 8 * MB


def test_groups_share_the_links_of_their_hosts():
    """Of 4 hosts with 2 ranks, rank 0, 2, 4, 6 share a batch, and 1, 3, 5, 7 another: each has half of a link."""
    shared, alone = of_hosts(4, 2, 1e9), of_hosts(4, 1, 1e9)
    apart = shared.exchange("all_reduce", 8 * MB, 8, group=Group(4, 2))
    single = alone.exchange("all_reduce", 8 * MB, 4)
    assert apart.outcome.seconds == pytest.approx(2 * single.outcome.seconds, rel=0.01)
    assert apart.sent == pytest.approx(2 * single.sent, rel=0.01)


def test_a_group_inside_a_host_uses_no_link():
    found = of_hosts(4, 2, 1e9).exchange("all_reduce", 8 * MB, 8, group=Group(2))
    assert found.sent == 0 and found.outcome.world == 2


def test_gradients_are_averaged_over_the_ranks_that_share_a_batch():
    found = predict(job(), of_hosts(4, 2, 1e9), strategy("3d:tensor=2:stages=2:microbatches=4"), 8)
    groups = {
        (one.operation.collective, one.operation.group) for one in found.timeline if one.operation.collective
    }
    assert groups == {("all_reduce", Group(2)), ("all_reduce", Group(2, 2)), ("broadcast", Group(2, 4))}
    assert sum(found.causes.values()) == pytest.approx(found.seconds)


def test_zero_divides_the_optimizer():
    whole, divided = (strategy(f"3d:stages=2:zero={n}") for n in (0, 1))
    assert divided.memory(job(), 8).optimizer == whole.memory(job(), 8).optimizer / 4
    one, other = (predict(job(), cluster(hosts=8), each, 8) for each in (whole, divided))
    assert other.seconds == pytest.approx(one.seconds - 0.002 * 3 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("name", "world", "message"),
    [
        ("3d:tensor=2:stages=2", 6, "3d: 6 ranks are not a multiple of tensor x stages, 4"),
        ("3d:stages=8", 8, "3d: 8 stages need as many layers, and the job has 4"),
    ],
)
def test_what_does_not_fit_is_named(name, world, message):
    with pytest.raises(ValueError, match=message):
        predict(job(), cluster(hosts=world), strategy(name), world)


def test_a_job_without_results_cannot_be_divided():
    with pytest.raises(ValueError, match="the job's layers lack output_bytes"):
        predict(job(output=0), cluster(hosts=2), strategy("3d:tensor=2"), 2)
