"""Small jobs and clusters for the tests."""

import math

from ringreduce.studies.plan import Cluster, Device, Job, Layer, Optimizer, Parameter
from ringreduce.studies.simulate import Costs, Flat, MessageCosts, Network

MB = 1 << 20


def job(layers=4, nbytes=2 * MB, forward=0.010, backward=0.020, update=0.004, output=4096, **more):
    """Layers of one parameter each. A step of one rank takes layers * (forward + backward) + update seconds."""
    numel = nbytes // 4
    made = [
        Layer(
            name=f"layer {n}", unit=f"block {n}", forward_s=forward, backward_s=backward,
            parameters=[Parameter(name=f"weight {n}", numel=numel, rows=512)], activation_bytes=1000,
            output_bytes=output,
        )
        for n in range(layers)
    ]  # fmt: skip
    more.setdefault("optimizer", Optimizer(element_s=update / (layers * numel)))
    return Job(samples=8, layers=made, **more)


def cluster(hosts=4, rate=1e9, latency_us=0.0, **device):
    """Hosts with one rank each, whose messages take nothing but the links' time."""
    return Cluster(Network(topology=Flat(hosts=hosts, rate=rate, latency_us=latency_us)), Device(**device))


def of_cpus(hosts, ranks_per_host, cores, copy="1 GB/s"):
    """Hosts on which every byte of a message costs its receiver the same time."""
    costs = Costs(cores=cores, inside=MessageCosts(receive_rate=copy, combine_rate=copy))
    topology = Flat(hosts=hosts, ranks_per_host=ranks_per_host, rate=math.inf, latency_us=0)
    return Cluster(Network(topology=topology, costs=costs), Device(kind="cpu"))
