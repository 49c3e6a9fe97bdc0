"""What ``auto`` picks on hosts of several ranks, beside the alternatives, as simulated."""

from __future__ import annotations

import pytest

from ringreduce.simulate import Costs, Flat, MessageCosts, Network, simulate


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_reduce"])
@pytest.mark.parametrize(
    ("rate", "inside", "nbytes"),
    [
        ("1 Gbit/s", "10 GB/s", 64 << 10),
        ("10 Gbit/s", "10 GB/s", 1 << 20),
        ("100 Gbit/s", "400 GB/s", 4 << 20),
        ("100 Gbit/s", "400 GB/s", 64 << 20),
        ("3200 Gbit/s", "400 GB/s", 1 << 20),
        ("3200 Gbit/s", "400 GB/s", 64 << 20),
    ],
)
def test_hosts_of_several_ranks(collective, rate, inside, nbytes):
    """Direct sends bytes between hosts once for each rank; rings win if links are as fast as memory."""
    near = MessageCosts(send_us=0.3, receive_us=0.3, receive_rate=inside, combine_rate=inside)
    topology = Flat(hosts=2, ranks_per_host=8, rate=rate, latency_us=2)
    network = Network(
        topology=topology, costs=Costs(inside=near, between=MessageCosts(send_us=1, receive_us=1))
    )
    names = ["ring", "two_level", "two_shot" if collective == "all_reduce" else "direct"]
    best = min(simulate(name, nbytes, network, collective).seconds for name in names)
    assert simulate("auto", nbytes, network, collective).seconds < 1.1 * best
