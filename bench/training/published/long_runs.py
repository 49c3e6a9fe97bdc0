"""Training over slow links, and runs of weeks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bench.training.published.clusters import Point
from ringreduce.plan import Cluster, Failures, Job, Layer, Parameter, goodput, predict, strategy
from ringreduce.simulate import Flat, Network

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
