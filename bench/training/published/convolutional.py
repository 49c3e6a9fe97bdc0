"""Convolutional networks, with data parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from bench.training.published.clusters import Point, hosts, ratio
from ringreduce.plan import Cluster, Device, Job, Layer, Parameter, predict, strategy
from ringreduce.simulate import Costs, Flat, MessageCosts, Network
from ringreduce.studies.plan.operations import Operations
from ringreduce.studies.plan.strategies.ddp import DDP
from ringreduce.studies.plan.strategies.strategy import Bucket


def resnet(blocks: tuple[int, ...]) -> list[tuple[int, float]]:
    """Returns the layers of a ResNet of bottlenecks (He et al., CVPR 2016) for 224x224 images."""
    found = [(7 * 7 * 3 * 64, 112.0**2)]
    width = 64
    for stage, count in enumerate(blocks):
        inner, pixels = 64 << stage, (56.0 / (1 << stage)) ** 2
        for block in range(count):
            found += [(width * inner, pixels), (9 * inner * inner, pixels), (4 * inner * inner, pixels)]
            if block == 0:
                found.append((width * 4 * inner, pixels))
            width = 4 * inner
    return [(numel, numel * area) for numel, area in [*found, (2048 * 1000, 1.0)]]


def vgg16() -> list[tuple[int, float]]:
    """Returns the layers of VGG-16 (Simonyan and Zisserman, ICLR 2015) for 224x224 images."""
    found, before, side = list[tuple[int, float]](), 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            found.append((9 * before * width, 9.0 * before * width * side * side))
            before = width
        side //= 2
    return found + [(each, float(each)) for each in (25088 * 4096, 4096 * 4096, 4096 * 1000)]


def convolutional(layers: list[tuple[int, float]], samples: int, forward: float, backward: float) -> Job:
    """Returns a job whose passes take that long, divided over the layers by their multiply-adds."""
    total = sum(work for _, work in layers)
    made = [
        Layer(
            name=f"layer {n}", forward_s=forward * work / total, backward_s=backward * work / total,
            parameters=[Parameter(name=f"weight {n}", numel=numel)],
        )
        for n, (numel, work) in enumerate(layers)
    ]  # fmt: skip
    return Job(samples=samples, layers=made)


def imagenet_in_an_hour() -> Iterator[Point]:
    """Goyal et al., arXiv:1706.02677: hosts of 8 P100 with NVLink, 50 Gbit/s; 32 images, backward pass 120 ms."""
    job = convolutional(resnet((3, 4, 6, 3)), 32, 0.060, 0.120)
    found = ratio(job, lambda world: hosts(world // 8, 8, "50 Gbit/s", "20 GB/s"), "ddp:bucket_mb=4", 8, 256)
    yield Point("ImageNet in 1 hour (2017)", "ResNet-50, 256 against 8 GPUs", 0.90, found)


def horovod() -> Iterator[Point]:
    """Horovod's docs/benchmarks.rst: 128 hosts of 4 Pascal GPUs, RoCE at 25 Gbit/s; 64 images for each GPU."""
    for name, layers, rate, published in (
        (
            "ResNet-101",
            resnet((3, 4, 23, 3)),
            1656.82 / 16,
            0.90,
        ),  # images a second, on 16 GPUs in the same file
        ("VGG-16", vgg16(), 150.0, 0.68),
    ):
        step = 64 / rate
        job = convolutional(layers, 64, step / 3, step * 2 / 3)
        found = predict(
            job,
            hosts(128, 4, "25 Gbit/s", "10 GB/s"),
            strategy("data_parallel:bucket_mb=64:first_bucket_mb=64"),
            512,
        )
        yield Point("Horovod (2018)", f"{name} on 512 GPUs", published, found.efficiency)


def ddp() -> Iterator[Point]:
    """Li et al., VLDB 2020, section 5: hosts of 8 V100, 100 Gbit/s. 32 images in 90 ms are an assumption."""
    job = convolutional(resnet((3, 4, 6, 3)), 32, 0.030, 0.060)
    found = predict(job, hosts(32, 8, "100 Gbit/s", "40 GB/s"), strategy("ddp"), 256)
    yield Point("PyTorch DDP (2020)", "ResNet-50 on 256 GPUs, NCCL", 0.50, found.efficiency)
    yield from gloo(job)


class Ring(DDP):
    """DDP over Gloo, whose all-reduces are rings of all ranks."""

    title: ClassVar[str] = "DDP over Gloo"

    def send(
        self, job: Job, world: int, steps: Operations, name: str, bucket: Bucket, ready: int
    ) -> list[int]:
        return [steps.exchange(name, "all_reduce", bucket.nbytes, [ready], algorithm="ring")]


def gloo(job: Job) -> Iterator[Point]:
    """The same over Gloo: how much of the time is left if only every eighth step synchronises.

    A process is assumed to get 10 Gbit/s through its sockets, also inside a host.
    """
    socket = MessageCosts(send_us=10, receive_us=10, send_rate="10 Gbit/s", combine_rate="4 GB/s")
    topology = Flat(hosts=32, ranks_per_host=8, rate="100 Gbit/s", latency_us=20)
    costs = Costs(inside=socket, between=socket)
    found = predict(job, Cluster(Network(topology=topology, costs=costs), Device(kind="gpu")), Ring(), 256)
    left = (1 + 7 * found.efficiency) / 8
    yield Point("PyTorch DDP (2020)", "the same, Gloo, every 8th step synchronised", 1 - 0.57, left)
