"""Spanning trees that share a network's links: what they carry, that no others carry more, and that they are right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pydantic")
from scipy.optimize import linprog

from ringreduce._engine import schedules as engine
from ringreduce.simulate import FatTree, Flat, Graph, GraphLink, Network, Sites, Torus
from ringreduce.synthesis import synthesise

MB = 1e6
FOUR_SITES = {"site0", "site1", "site2", "site3", "backbone"}


def made(topology):
    return synthesise(Network(topology=topology))


def routes(topology):
    """By host, host and link, whether the shortest way from the one to the other takes the link."""
    plan, hosts = topology.build()
    leaving = {node: [] for node in plan.nodes.values()}
    for number, (one, other, _, _) in enumerate(plan.links):
        leaving[one].append((number, other))
    taken = np.zeros((len(hosts), len(hosts), len(plan.links)))
    for a, start in enumerate(hosts):
        came, queue = {plan.nodes[start]: None}, [plan.nodes[start]]
        for node in queue:
            for number, other in leaving[node]:
                if other not in came:
                    came[other] = (number, node)
                    queue.append(other)
        for b, end in enumerate(hosts):
            node = plan.nodes[end]
            while came[node] is not None:
                number, node = came[node]
                taken[a, b, number] += 1
    return taken, np.array([link[2] for link in plan.links])


def load(tree, taken):
    return sum(taken[a, b] + taken[b, a] for a, b in enumerate(tree) if b >= 0)


def all_trees(count):
    """The parents in every tree of so many hosts, with host 0 as the root (Prüfer's sequences)."""
    for sequence in itertools.product(range(count), repeat=count - 2):
        degree = [1 + sequence.count(host) for host in range(count)]
        edges = []
        for host in sequence:
            leaf = degree.index(1)
            edges.append((leaf, host))
            degree[leaf], degree[host] = 0, degree[host] - 1
        edges.append(tuple(host for host in range(count) if degree[host] == 1))
        parents, queue = [-1] * count, [0]
        for host in queue:
            for a, b in edges:
                for one, other in ((a, b), (b, a)):
                    if one == host and other != parents[host]:
                        parents[other] = host
                        queue.append(other)
        yield parents


@st.composite
def graphs(draw, most):
    count, switches = draw(st.integers(2, most)), draw(st.integers(0, 3))
    nodes = [f"host{n}" for n in range(count)] + [f"switch{n}" for n in range(switches)]
    rate = st.sampled_from([1e8, 2.5e8, 5e8, 1e9]) | st.floats(1e8, 1e9)
    pairs = [(nodes[draw(st.integers(0, n - 1))], nodes[n]) for n in range(1, len(nodes))]
    more = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes)).filter(lambda pair: pair[0] != pair[1])
    pairs += draw(st.lists(more, max_size=2 * count))
    links = [GraphLink(between=pair, rate=draw(rate)) for pair in pairs]
    return Graph(hosts=nodes[:count], switches=nodes[count:], links=links, rate=1e9)


@given(graphs(5))
@settings(deadline=None, max_examples=60)
def test_the_bound_is_that_of_all_trees(graph):
    taken, rates = routes(graph)
    columns = np.array([load(tree, taken) for tree in all_trees(len(graph.hosts))]).T
    best = linprog(-np.ones(columns.shape[1]), A_ub=columns, b_ub=rates)
    assert made(graph).bound == pytest.approx(-best.fun, rel=1e-3)


@given(graphs(12))
@settings(deadline=None, max_examples=60)
def test_trees_are_right_carry_what_they_say_and_come_near_the_bound(graph):
    taken, rates = routes(graph)
    found = made(graph)
    for forest in found.forests:
        assert engine.check_algorithm("all_reduce", "synthesised", len(graph.hosts), trees=forest.trees) == ""
        busiest = max(sum(load(tree, taken) for tree in forest.trees) / rates)
        assert forest.rate == pytest.approx(len(forest.trees) / busiest, rel=1e-6)
        assert forest.rate <= found.bound * (1 + 1e-6)
    assert max(forest.rate for forest in found.forests) > 0.9 * found.bound


@pytest.mark.parametrize("hosts", range(2, 18))
def test_equal_links_are_used_as_by_a_ring(hosts):
    found = made(Flat(hosts=hosts, rate=100 * MB))
    assert found.bound == pytest.approx(100 * MB * hosts / (2 * (hosts - 1)), rel=1e-3)
    assert found.forests[-1].rate > 0.97 * found.bound


@pytest.mark.parametrize(
    ("topology", "bound", "due"),
    [
        (Sites(hosts=[2, 2], rate=125 * MB, trunk=62.5 * MB), 62.5, {"site0", "site1", "backbone"}),
        (Sites(hosts=[8, 8], rate=125 * MB, trunk=62.5 * MB), 62.5, {"site0", "site1", "backbone"}),
        # Each of four sites sends to others, and gets, the buffer one and a half times.
        (Sites(hosts=[4] * 4, rate=125 * MB, trunk=62.5 * MB), 62.5 / 1.5, FOUR_SITES),
        # A host with a slow link is never in the middle of a tree.
        (Flat(hosts=4, rate=[125 * MB, 31.25 * MB] * 2), 31.25, {"host1", "host3", "switch"}),
        (Flat(hosts=16, rate=[125 * MB, 31.25 * MB] * 8), 31.25, {f"host{n}" for n in range(1, 16, 2)} | {"switch"}),
        (FatTree(hosts=16, hosts_per_leaf=4, oversubscription=8, rate=100 * MB), 50 / 1.5, None),
        (Torus(dims=[4, 4], rate=100 * MB), 100 * 32 / 15, None),
    ],
)  # fmt: skip
def test_what_cuts_allow(topology, bound, due):
    found = made(topology)
    assert found.bound == pytest.approx(bound * MB, rel=1e-3)
    assert max(forest.rate for forest in found.forests) > 0.95 * found.bound
    if due is not None:
        assert found.limits and {name for link in found.limits for name in link.split(" > ")} <= due
        assert found.forests[-1].rate > 0.999 * found.bound


@pytest.mark.parametrize("world", range(2, 18))
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_of_a_host_take_turns(world, ranks):
    found = made(Sites(hosts=[1, world], rate=125 * MB, trunk=62.5 * MB, ranks_per_host=ranks))
    assert found.world == (world + 1) * ranks
    for forest in found.forests:
        assert engine.check_algorithm("all_reduce", "synthesised", found.world, trees=forest.trees) == ""
        for host in range(world + 1):
            members = range(host * ranks, (host + 1) * ranks)
            speaks = [sum(tree[rank] not in members for rank in members) for tree in forest.trees]
            assert set(speaks) == {1}
            assert {rank for tree in forest.trees for rank in members if tree[rank] not in members} == set(
                members
            )


def test_one_host_and_too_many_need_no_trees():
    for hosts in (1, 300):
        found = made(Flat(hosts=hosts, rate=1e9))
        assert found.forests == []
        assert "none" in repr(found)
        assert found.way(1 << 20).algorithm != "synthesised"


@pytest.mark.parametrize(
    "trees",
    [
        [[-1, 0]],
        [[-1, 0, -1]],
        [[0, 0, 0]],
        [[-1, 2, 1]],
        [[-1, 0, 3]],
        [[-1, 0, -2]],
        [[-1, 0, 0], []],
    ],
)
def test_what_spans_no_tree(trees):
    with pytest.raises(ValueError, match=r"^tree \d does not span 3 ranks$"):
        engine.build("all_reduce", "synthesised", 3, 0, trees=trees)
