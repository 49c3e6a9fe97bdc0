"""Compares predictions with published scaling figures, from the hardware that their authors state.

    python3 -m bench.training.published             # some minutes
    python3 -m bench.training.published --ranges    # a 7 B model on 8, 64 and 256 GPUs

Each case has the model's layers and the stated devices and links. The computing time of one GPU is published beside the
figure, or set so that the smallest world agrees; what is compared is how the rate changes with the world. What the
sources do not state is assumed: docs/planning.md says what.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ringreduce.plan import (
    Cluster,
    Device,
    Failures,
    Job,
    Layer,
    Parameter,
    Transformer,
    goodput,
    predict,
    strategy,
)
from ringreduce.simulate import Costs, Flat, MessageCosts, Network
from ringreduce.text import markdown

NEAR = 0.15
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


# --- convolutional networks: parameters and multiply-adds of each layer ---


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


def ratio(job: Job, make: Callable[[int], Cluster], text: str, few: int, many: int) -> float:
    """Returns the rate of a rank among many, relative to one among few."""
    rates = [predict(job, make(world), strategy(text), world).rate / world for world in (few, many)]
    return rates[1] / rates[0]


# --- the cases ---


def imagenet_in_an_hour() -> Iterator[Point]:
    """Goyal et al., arXiv:1706.02677: hosts of 8 P100 with NVLink, 50 Gbit/s; 32 images, backward pass 120 ms."""
    job = convolutional(resnet((3, 4, 6, 3)), 32, 0.060, 0.120)
    found = ratio(job, lambda world: hosts(world // 8, 8, "50 Gbit/s", "20 GB/s"), "ddp:bucket_mb=4", 8, 256)
    yield Point("ImageNet in 1 hour (2017)", "ResNet-50, 256 against 8 GPUs", 0.90, found)


def horovod() -> Iterator[Point]:
    """Horovod's docs/benchmarks.rst: 128 hosts of 4 Pascal GPUs, RoCE at 25 Gbit/s; 64 images for each GPU."""
    for name, layers, rate, published in (
        # Images a second, on 16 GPUs in the same file.
        ("ResNet-101", resnet((3, 4, 23, 3)), 1656.82 / 16, 0.90),
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


def megatron() -> Iterator[Point]:
    """Shoeybi et al., arXiv:1909.08053: DGX-2H of 16 V100, 300 GB/s inside, 100 GB/s between; 39 TFLOP/s alone."""
    model = Transformer(
        layers=40, width=1536, heads=16, sequence=1024, vocabulary=51200, batch=8, dtype="float16", recompute="layers",
        flops=130e12, efficiency=0.3, memory_rate="900 GB/s",
    )  # fmt: skip
    found = predict(model.job("1.2 B"), hosts(4, 16, "100 GB/s", "150 GB/s"), strategy("ddp"), 64)
    yield Point("Megatron-LM (2019)", "1.2 B, data parallel on 64 GPUs", 0.96, found.efficiency)


def torchtitan() -> Iterator[Point]:
    """torchtitan's benchmarks/: hosts of 8 H100 or H200, 400 Gbit/s for each GPU; Llama 3.1 8B, 2 sequences of 8192."""
    for what, few, many, before, after in (
        ("FSDP2, 128 against 8 H100", 8, 128, 5762, 5605),
        ("FSDP2 and compile, 128 against 8 H100", 8, 128, 6667, 6514),
        ("FSDP2 and float8, 64 against 32 H200", 32, 64, 10938, 10753),
    ):
        model = Transformer(
            layers=32, width=4096, heads=32, sequence=8192, vocabulary=128256, batch=2, feed_forward=21504,
            flops=989e12, efficiency=before / 5762 * 0.36, memory_rate="2.4 TB/s",
        )  # fmt: skip
        found = ratio(
            model.job("8 B"),
            lambda world: hosts(world // 8, 8, "3200 Gbit/s", "400 GB/s"),
            "fsdp2",
            few,
            many,
        )
        yield Point("torchtitan (2024, 2025)", what, after / before, found)


SHARES = (0.50, 0.80, 0.90, 0.95, 0.99)
# Douillard et al., arXiv:2501.18512, table 4: Gbit/s between two replicas for each of these shares of computation. They
# are the first that suffice of a list in which each is 1.21 times the one before.
DILOCO = {
    ("1 B", 24, 0.1, 1): (86.8, 152.6, 184.2, 222.3, 569.0),
    ("1 B", 24, 0.1, 100): (1.4, 6.2, 13.3, 23.3, 86.8),
    ("10 B", 48, 0.8, 1): (104.8, 222.3, 222.3, 268.3, 471.5),
    ("10 B", 48, 0.8, 100): (1.7, 7.5, 16.0, 33.9, 104.8),
    ("100 B", 108, 4.9, 1): (184.2, 323.8, 390.7, 390.7, 471.5),
    ("100 B", 108, 4.9, 100): (3.0, 11.0, 23.3, 49.4, 184.2),
}


def diloco() -> Iterator[Point]:
    """Data parallelism and DiLoCo between two places. Between synchronisations, 100 steps are accumulated."""
    for (name, layers, step, every), published in DILOCO.items():
        numel = int(float(name.split()[0]) * 1e9) // layers
        made = [
            Layer(name=str(n), forward_s=step / 3 / layers, backward_s=2 * step / 3 / layers,
                  parameters=[Parameter(name=str(n), numel=numel, dtype="bfloat16")])
            for n in range(layers)
        ]  # fmt: skip
        job = Job(samples=1, layers=made)
        for share, gbits in zip(SHARES, published, strict=True):
            what = f"{name}, {'every step' if every == 1 else 'every 100 steps'}, {share:.0%} computing"
            yield Point("Streaming DiLoCo (2025)", what, gbits, needed(job, every, share), "{:.1f} Gbit/s")


def needed(job: Job, every: int, share: float) -> float:
    """Returns the Gbit/s with which computations take a share of the time of two ranks."""
    low, high = 0.01, 10_000.0
    text = strategy(f"ddp:accumulation={every}")
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        network = Network(topology=Flat(hosts=2, rate=middle * 1e9 / 8, latency_us=0))
        low, high = (
            (low, middle) if predict(job, Cluster(network), text, 2).efficiency >= share else (middle, high)
        )
    return high


def large_runs() -> Iterator[Point]:
    """Reported shares of useful time. Llama 3 (arXiv:2407.21783): 16,384 GPUs, 54 days, 466 interruptions, above 90 per
    cent. MegaScale (NSDI 2024): 12,288 GPUs, over 100 recoveries in weeks, above 90 per cent; found and diagnosed in
    less than 10 minutes, and at most 15 until the lost steps are made again, which both runs get here."""
    for name, gpus, days, interruptions in (
        ("Llama 3 405B (2024)", 16384, 54, 466),
        ("MegaScale (2024)", 12288, 28, 100),
    ):
        mtbf = days * 24 * gpus / 8 / interruptions
        failures = Failures(mtbf_hours=mtbf, checkpoint_s=3, interval_s=600, restart_s=600, spares=10_000)
        found = goodput(gpus // 8, failures, days)
        yield Point(name, f"useful time, {found.failures} failures in {days} days", 0.90, found.useful)


CASES = (imagenet_in_an_hour, horovod, ddp, megatron, torchtitan, diloco, large_runs)

# --- the field's three ranges ---

RANGES = {8: (0.95, 0.99), 64: (0.85, 0.95), 256: (0.70, 0.90)}
NETWORKS: dict[str, Callable[[int], Cluster]] = {
    "NVLink between all": lambda world: hosts(world, 1, "450 GB/s", "450 GB/s"),
    "8 x 400 Gbit/s InfiniBand a host": lambda world: hosts(world // 8, 8, "3200 Gbit/s", "400 GB/s"),
    "100 Gbit/s Ethernet a host": lambda world: hosts(world // 8, 8, "100 Gbit/s", "400 GB/s"),
}


def ranges() -> list[list[str]]:
    """Returns rows for a 7 B model on H100: the share of computation of the fastest strategy that fits."""
    rows = [["network", "GPUs", "the field", "2,048 tokens", "16,384 tokens", "131,072 tokens"]]
    model = Transformer(
        layers=32, width=4096, heads=32, sequence=2048, vocabulary=32000, batch=1, feed_forward=16384, flops=989e12,
        efficiency=0.4, memory_rate="3.3 TB/s",
    )  # fmt: skip
    jobs = [
        (model, 1),
        (model.model_copy(update={"batch": 4}), 2),
        (model.model_copy(update={"batch": 4}), 16),
    ]
    for name, make in NETWORKS.items():
        for world, (low, high) in RANGES.items():
            row = [name, str(world), f"{low:.0%} to {high:.0%}"]
            for each, passes in jobs:
                texts = [
                    f"{one}:accumulation={passes}"
                    for one in ("zero1", "zero2", "fsdp2", "fsdp2:reshard=false")
                ]
                found = [predict(each.job("7 B"), make(world), strategy(text), world) for text in texts]
                fits = [one for one in found if one.memory.total <= 80e9]
                best = max(fits, key=lambda one: one.rate)
                # Ranks that share the optimizer's work are faster than one alone: compare with the same work each.
                share = best.compute_s / best.seconds
                verdict = "holds" if low <= share <= high else "better" if share > high else "worse"
                row.append(f"{share:.0%} {best.strategy.title}, {verdict}")
            rows.append(row)
    return rows


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ranges", action="store_true", help="the table for a 7 B model, in place of the figures"
    )
    options = parser.parse_args()
    if options.ranges:
        print(markdown(ranges()))
        return
    points = [point for case in CASES for point in case()]
    rows = [["source", "what", "published", "predicted", "difference"]]
    for one in points:
        figures = (one.form.format(value) for value in (one.published, one.predicted))
        rows.append([one.source, one.what, *figures, f"{one.predicted / one.published - 1:+.1%}"])
    near = sum(abs(one.predicted / one.published - 1) <= NEAR for one in points)
    print(f"{markdown(rows)}\n\n{near} of {len(points)} points are within {NEAR:.0%}")


if __name__ == "__main__":
    main()
