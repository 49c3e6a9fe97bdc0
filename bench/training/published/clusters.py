"""What the cases share: a point to compare, and clusters of hosts at one switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ringreduce.plan import Cluster, Device, Job, predict, strategy
from ringreduce.simulate import Costs, Flat, MessageCosts, Network

# At each end of a message, inside a host and between hosts: kernels that wait for flags.
NEAR_US, FAR_US = 0.3, 1.0


class Point(NamedTuple):
    source: str
    what: str
    published: float
    predicted: float
    form: str = "{:.1%}"


def hosts(number: int, each: int, rate: str, inside: str) -> Cluster:
    """Returns hosts at one switch: the rate of a host's links, and that at which its GPUs read from each other."""
    near = MessageCosts(send_us=NEAR_US, receive_us=NEAR_US, receive_rate=inside, combine_rate=inside)
    far = MessageCosts(send_us=FAR_US, receive_us=FAR_US)
    topology = Flat(hosts=number, ranks_per_host=each, rate=rate, latency_us=2)
    return Cluster(Network(topology=topology, costs=Costs(inside=near, between=far)), Device(kind="gpu"))


def ratio(job: Job, make: Callable[[int], Cluster], text: str, few: int, many: int) -> float:
    """Returns the rate of a rank among many, relative to one among few."""
    rates = [predict(job, make(world), strategy(text), world).rate / world for world in (few, many)]
    return rates[1] / rates[0]
