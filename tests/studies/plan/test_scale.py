"""Large worlds: predicted from the ranks that differ, in little time and memory."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan import Cluster, Failures, Transformer, goodput, predict, strategy
from ringreduce.studies.plan.cluster import Exchange
from ringreduce.studies.simulate import Costs, FatTree, MessageCosts, Network, simulate
from tests.conftest import slowly

JOB = Transformer(
    layers=4, width=512, heads=8, sequence=128, vocabulary=1000, batch=1, flops=1e13, efficiency=0.5, memory_rate=1e12
).job("small")  # fmt: skip


def network(hosts, ranks_per_host=8):
    """Hosts with fast links inside, and a network whose upper tier has half the rate."""
    costs = Costs(
        inside=MessageCosts(send_us=1, receive_us=1, receive_rate="100 GB/s", combine_rate="50 GB/s"),
        between=MessageCosts(send_us=2, receive_us=2, combine_rate="20 GB/s"),
    )
    topology = FatTree(
        hosts=hosts, ranks_per_host=ranks_per_host, hosts_per_leaf=4, oversubscription=2, rate="100 Gbit/s",
        latency_us=2,
    )  # fmt: skip
    return Network(topology=topology, costs=costs)


class InFull(Cluster):
    """A cluster on which each rank of each collective is simulated."""

    def exchange(self, collective, nbytes, world, *more):
        found = simulate("auto", nbytes, self._costs, collective, intervals=1)
        assert found.simulated == world
        return Exchange(found, 0.0)


@pytest.mark.parametrize("name", ["data_parallel", "zero2:bucket_mb=4", "fsdp2", "power_sgd"])
def test_the_ranks_that_differ_stand_for_all(name):
    world = 16 * 8
    few, all_ = (predict(JOB, kind(network(16)), strategy(name), world) for kind in (Cluster, InFull))
    assert few.seconds == pytest.approx(all_.seconds, rel=0.02) and few.exposed > 0


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_ten_times_the_ranks_are_not_ten_times_the_work(collective):
    found = [simulate("auto", 1 << 24, network(hosts), collective) for hosts in (128, 1280)]
    assert [one.algorithm for one in found] == ["two_level"] * 2
    assert found[1].simulated == found[0].simulated and found[1].messages < 2 * found[0].messages


WHOLE = """
import resource, sys
from tests.studies.plan.test_scale import JOB, network
from ringreduce.studies.plan import Cluster, predict, strategy
found = predict(JOB, Cluster(network(12_500)), strategy(sys.argv[1]), 100_000)
assert found.efficiency < 1
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
"""


@pytest.mark.parametrize("name", [*slowly("data_parallel"), "fsdp2"])
def test_a_step_of_100000_ranks_fits_a_core_of_a_laptop(name):
    """The limits are 30 s of a core and 4 GiB. The time is that of the core, whoever else uses it."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", WHOLE, name], capture_output=True, text=True, cwd=root, check=True
    )
    kibibytes, seconds = map(float, done.stdout.split())
    assert kibibytes < 4 << 20 and seconds < 30


def test_a_week_of_100000_ranks_is_simulated_at_once():
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = goodput(
        12_500, Failures(mtbf_hours=50_000, checkpoint_s=30, restart_s=300, repair_hours=24, spares=50)
    )
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert found.failures > 20 and 0 < found.useful < 1
    assert after.ru_utime - before.ru_utime < 30 and after.ru_maxrss < 4 << 20
