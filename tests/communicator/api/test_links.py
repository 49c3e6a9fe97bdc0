"""Measured links: what follows from them, and measuring them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringreduce._engine import make_links
from tests.conftest import on_threads


def made(bandwidth, latency=1e-4):
    bandwidth = np.array(bandwidth, float)
    return make_links(len(bandwidth), np.full(bandwidth.size, latency).tolist(), bandwidth.ravel().tolist())


def sites(where, inside, across):
    where = np.array(where)
    bandwidth = np.where(where[:, None] == where[None, :], float(inside), float(across))
    np.fill_diagonal(bandwidth, 0)
    return bandwidth


def slowest(order, bandwidth):
    return min(
        min(bandwidth[a][b], bandwidth[b][a]) for a, b in zip(order, [*order[1:], order[0]], strict=True)
    )


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 8, 9, 20])
def test_links_that_are_alike_leave_the_order_alone(hosts):
    assert made(sites([0] * hosts, 1e8, 1e8)).ring_order() == []


@pytest.mark.parametrize("hosts", [4, 5, 8, 12, 16])
def test_a_ring_changes_site_only_twice(hosts):
    where = [host % 2 for host in range(hosts)]
    order = made(sites(where, 1e8, 3e7)).ring_order()
    assert sorted(order) == list(range(hosts))
    changes = sum(where[order[i]] != where[order[i - 1]] for i in range(hosts))
    assert changes == 2
    assert order[0] == 0


@pytest.mark.parametrize("hosts", [4, 7, 8, 9, 14])
def test_a_slow_link_is_gone_round(hosts):
    bandwidth = sites([0] * hosts, 1e8, 1e8)
    bandwidth[1, 2] = 1e7  # one direction is enough
    order = made(bandwidth).ring_order()
    assert slowest(order, bandwidth) == 1e8


@given(st.integers(4, 11), st.randoms(use_true_random=False))
def test_an_order_is_one_and_is_no_worse_than_by_number(hosts, random):
    bandwidth = [[random.uniform(1, 10) if a != b else 0 for b in range(hosts)] for a in range(hosts)]
    order = made(bandwidth).ring_order()
    if order:
        assert sorted(order) == list(range(hosts))
        cost = [sum(1 / min(bandwidth[a][b], bandwidth[b][a]) for a, b in zip(lap, lap[1:] + lap[:1], strict=True))
                + 1 / slowest(lap, bandwidth) for lap in (order, list(range(hosts)))]  # fmt: skip
        assert cost[0] < cost[1]


def test_ranks_of_a_host_stay_together():
    hosts = [0, 1, 2, 3, 0, 1, 2, 3]
    bandwidth = np.zeros((8, 8))
    bandwidth[:4, :4] = sites([0, 1, 0, 1], 1e8, 3e7)  # of each host its first rank is measured
    order = made(bandwidth).ring_order(hosts)
    visited = [hosts[rank] for rank in order]
    assert visited[::2] == visited[1::2]
    assert sum(visited[i] % 2 != visited[i - 1] % 2 for i in range(8)) == 2


def test_an_order_needs_all_links():
    bandwidth = sites([0, 1, 0, 1], 1e8, 3e7)
    bandwidth[3, 1] = 0
    assert made(bandwidth).ring_order() == []


@pytest.mark.parametrize(
    ("latency", "bandwidth", "pace"),
    [(1e-4, 1.18e8, 1), (1.5e-4, 1.18e8, 1), (5e-3, 1.18e8, 50), (2e-5, 1e10, 17), (1e-5, 1e6, 1), (0, 0, 1)],
)
def test_pace(latency, bandwidth, pace):
    assert made(sites([0] * 4, bandwidth, bandwidth), latency).pace() == pytest.approx(pace, rel=0.01)


def test_tables_must_be_whole():
    with pytest.raises(ValueError, match="an entry for each pair"):
        make_links(2, [0.0] * 4, [0.0] * 3)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_measuring(world):
    """On links that are as fast as memory; nothing is known before."""

    def rank_main(comm):
        assert comm.links is None
        found = comm.measure_links()
        apart = ~np.eye(world, dtype=bool)
        assert (found.latency[apart] > 0).all()
        assert (found.latency[apart] < 1).all()
        assert (found.bandwidth[apart] > 1e6).all()
        assert np.isnan(found.latency[~apart]).all()
        assert found.order is None or sorted(found.order) == list(range(world))
        assert "Links" in repr(found)
        comm.all_reduce(np.ones(1000))
        np.testing.assert_array_equal(comm.links.bandwidth, found.bandwidth)
        with comm.split(comm.rank % 2) as half:
            members = list(range(comm.rank % 2, world, 2))
            np.testing.assert_array_equal(half.links.latency, found.latency[np.ix_(members, members)])
        return found.bandwidth

    tables = on_threads(world, rank_main)
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])
