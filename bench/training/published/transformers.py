"""Transformers, with data parallelism, FSDP2, ZeRO 3, and tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.training.published.clusters import Point, hosts, ratio
from ringreduce.plan import Cluster, Transformer, predict, strategy


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


# Narayanan et al., SC 2021, table 2: GPUs, the microbatches of a pipeline or the sequences of a GPU, TFLOP/s of a GPU.
# The first row is what the others are compared with.
THREE_D = {
    ("174.6 B", 96, 12288, 96, 12): ((384, 384, 153), (768, 192, 149), (1536, 96, 141)),
}
ZERO3 = {
    ("174.6 B", 96, 12288, 96): ((384, 4, 144), (768, 2, 88), (1536, 1, 44)),
    ("529.6 B", 105, 20480, 128): ((1120, 2, 98), (2240, 1, 48)),
}


def selene(world: int) -> Cluster:
    """Returns hosts of 8 A100 with NVLink at 300 GB/s, and 200 Gbit/s for each GPU."""
    return hosts(world // 8, 8, "1600 Gbit/s", "250 GB/s")


def of_a100(layers: int, width: int, heads: int, batch: int) -> Transformer:
    return Transformer(
        layers=layers, width=width, heads=heads, sequence=2048, vocabulary=51200, batch=batch, dtype="float16",
        recompute="layers", flops=312e12, efficiency=0.53, memory_rate="1.5 TB/s",
    )  # fmt: skip


def megatron_3d() -> Iterator[Point]:
    """Tensor parallelism on 8 GPUs and a pipeline of 12 stages, with the same batch on more GPUs."""
    for (name, layers, width, heads, stages), rows in THREE_D.items():
        job = of_a100(layers, width, heads, 1).job(name)
        rates = {
            world: predict(
                job, selene(world), strategy(f"3d:tensor=8:stages={stages}:microbatches={microbatches}"), world
            ).rate / world
            for world, microbatches, _ in rows
        }  # fmt: skip
        yield from compared("Megatron-LM (2021)", f"{name}, 3D", rows, rates)


def zero3() -> Iterator[Point]:
    """The same models with DeepSpeed's ZeRO 3 without model parallelism."""
    for (name, layers, width, heads), rows in ZERO3.items():
        rates = {
            world: predict(
                of_a100(layers, width, heads, batch).job(name), selene(world), strategy("fsdp2"), world
            ).rate / world
            for world, batch, _ in rows
        }  # fmt: skip
        yield from compared("Megatron-LM (2021)", f"{name}, ZeRO 3", rows, rates)


def llama3() -> Iterator[Point]:
    """Llama Team, arXiv:2407.21783, table 4: 8 GPUs for a layer, 16 stages, 16 M tokens a step, 8,192 a sequence."""
    model = Transformer(
        layers=126, width=16384, heads=128, sequence=8192, vocabulary=128256, batch=1, feed_forward=79872,
        flops=989e12, efficiency=0.5, memory_rate="2.4 TB/s",
    )  # fmt: skip
    rows = ((8192, 32, 430), (16384, 16, 400))
    rates = {
        world: predict(
            model.job("405 B"), hosts(world // 8, 8, "3200 Gbit/s", "400 GB/s"),
            strategy(f"3d:tensor=8:stages=16:microbatches={microbatches}:zero=1"), world,
        ).rate / world
        for world, microbatches, _ in rows
    }  # fmt: skip
    yield from compared("Llama 3 405B (2024)", "3D", rows, rates)


def compared(
    source: str, what: str, rows: Sequence[tuple[int, int, float]], rates: dict[int, float]
) -> Iterator[Point]:
    """Yields each row's rate of a GPU, relative to that of the first row."""
    few, _, before = rows[0]
    for many, _, after in rows[1:]:
        yield Point(
            source, f"{what}, {many:,} against {few:,} GPUs", after / before, rates[many] / rates[few]
        )
