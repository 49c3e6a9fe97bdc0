"""What algorithm="synthesised" runs: trees where they are predicted to be faster, else what is usual."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pydantic")

import ringreduce
from ringreduce import _engine
from ringreduce.simulate import Flat, Network, Sites, simulate
from ringreduce.synthesis import synthesise
from tests.conftest import on_threads

MB = 1e6
TWO_SITES = Network(topology=Sites(hosts=[2, 2], rate=125 * MB, trunk=62.5 * MB, trunk_latency_us=20))
MIXED = Network(topology=Flat(hosts=4, rate=[125 * MB, 31.25 * MB] * 2))
EQUAL = Network(topology=Flat(hosts=4, rate=125 * MB))


@pytest.mark.parametrize("network", [TWO_SITES, MIXED])
def test_large_buffers_come_near_the_bound(network):
    found = synthesise(network)
    way = found.way(16 << 20)
    assert way.algorithm == "synthesised" and way.forest >= 0
    assert (16 << 20) / way.seconds > 0.95 * found.bound
    ours, ring = (simulate(name, 16 << 20, network).seconds for name in ("synthesised", "ring"))
    assert ours < 0.75 * ring


@pytest.mark.parametrize("nbytes", [0, 8, 64 << 10, 1 << 20, 64 << 20])
def test_equal_links_leave_it_to_what_is_usual(nbytes):
    way = synthesise(EQUAL).way(nbytes)
    assert (way.algorithm, way.forest) == (_engine.choose("all_reduce", nbytes, 4, "tcp", False)[0], -1)


def test_small_buffers_take_few_rounds():
    found = synthesise(Network(topology=Sites(hosts=[8, 8], rate=125 * MB, trunk=62.5 * MB)))
    few = found.way(1 << 10).algorithm
    plan = ringreduce.schedules.schedule("all_reduce", few, 16, 0)
    assert len(plan.rounds) <= 4
    assert found.way(64 << 20).algorithm == "synthesised"


@pytest.mark.parametrize("network", [TWO_SITES, MIXED, EQUAL])
def test_ranks_run_it(network):
    def rank_main(comm):
        assert comm.synthesis is None
        x = np.full(9, comm.rank, "int32")
        comm.all_reduce(x, algorithm="synthesised")  # nothing is known: what is usual
        assert (x == 6).all()
        found = comm.synthesise(network)
        assert repr(comm.synthesis) == repr(found)
        for count in (0, 1, 1000, 300_001):
            for dtype in ("float32", "int64"):
                x = np.arange(count).astype(dtype) % 100 + comm.rank
                comm.all_reduce(x, algorithm="synthesised")
                np.testing.assert_array_equal(x, 4 * (np.arange(count) % 100) + 6)
        x = np.full(5 << 20, comm.rank + 1, "float32")
        comm.all_reduce(x, "avg", algorithm="synthesised", async_op=True).wait()
        assert (x == 2.5).all()
        x = np.full(1 << 20, comm.rank, "float32")
        comm.all_reduce(x, algorithm="synthesised", wire="bf16")
        assert (x == 6).all()
        return [found.way(nbytes).algorithm for nbytes in (8, 20 << 20)]

    assert len({tuple(ways) for ways in on_threads(4, rank_main)}) == 1


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_measure_their_network(world):
    def rank_main(comm):
        found = comm.synthesise()
        assert world == 1 or found.bound > 1e6
        assert bool(found.forests) == (world > 1)
        x = np.full(1 << 20, comm.rank, "float32")
        comm.all_reduce(x, algorithm="synthesised")
        assert (x == world * (world - 1) // 2).all()
        with comm.split(comm.rank % 2) as half:
            x[:] = half.rank
            half.all_reduce(x, algorithm="synthesised")  # which measures its own
            assert (x == half.size * (half.size - 1) // 2).all()
            assert half.synthesis is not None
        return found.bound, [forest.trees for forest in found.forests]

    first, *others = on_threads(world, rank_main)
    assert all(other == first for other in others)


def test_a_network_of_another_size_is_refused():
    with (
        ringreduce.local_group(1)[0] as comm,
        pytest.raises(ValueError, match=r"^network has 4 ranks, but the communicator has 1$"),
    ):
        comm.synthesise(TWO_SITES)


# --- from measured links to a network ----------------------------------------------------------------------------


def measured(together, alone=None, latency=3e-5):
    together = np.array(together, float)
    alone = together if alone is None else np.array(alone, float)
    world = len(together)
    links = _engine.make_links(
        world, np.full(world * world, latency).tolist(), alone.ravel().tolist(), together.ravel().tolist()
    )
    nodes, node_of, rows = links.network()
    return _engine.make_synthesis(nodes=nodes, node_of=node_of, links=rows, groups=[])


def pairs(world, rate):
    return np.array([[0 if a == b else rate(a, b) for b in range(world)] for a in range(world)])


@pytest.mark.parametrize("hosts", [4, 6, 8])
def test_pairs_that_slow_each_other_down_show_a_trunk(hosts):
    crossing = hosts // 2  # in the rounds in which all do, the trunk is shared by so many
    rates = pairs(hosts, lambda a, b: 120 * MB if a % 2 == b % 2 else 60 * MB / crossing)
    made = measured(rates)
    assert 50 * MB < made.bound < 62 * MB
    assert made.fastest(16 << 20, "ring", 256 << 10, 4)[0] == "synthesised"


def test_hosts_with_slow_links_show():
    own = [120, 30, 118, 29]
    made = measured(pairs(4, lambda a, b: min(own[a], own[b]) * MB))
    assert made.bound == pytest.approx(30 * MB, rel=0.05)
    for trees, _ in made.forests:
        assert all(parent in (-1, 0, 2) for tree in trees for parent in tree)


def test_noise_is_no_difference():
    random = np.random.default_rng(1)
    for _ in range(10):
        made = measured(pairs(4, lambda a, b: random.uniform(95, 121) * MB))
        assert made.fastest(16 << 20, "ring", 256 << 10, 4)[0] == "ring"


def test_a_slow_link_between_two_hosts_is_gone_round():
    made = measured(pairs(4, lambda a, b: 5 * MB if {a, b} == {1, 2} else 120 * MB))
    best = max(made.forests, key=lambda forest: forest[1])
    assert all(tree[1] != 2 and tree[2] != 1 for tree in best[0])
    assert made.bound > 60 * MB


def test_all_links_must_be_known():
    with pytest.raises(ValueError, match="not all links between hosts were measured"):
        measured(pairs(3, lambda a, b: 0 if a == 0 else 1e8))
