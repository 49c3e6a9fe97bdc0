"""The field's three ranges, derived for a 7 B model."""

from __future__ import annotations

from collections.abc import Callable

from bench.training.published.clusters import hosts
from ringreduce.plan import Cluster, Transformer, predict, strategy

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
