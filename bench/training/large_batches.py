"""Measures the loss after a fixed number of samples against the global batch, with and without what large batches need.

    python3 -m bench.training.large_batches
    python3 -m bench.training.large_batches --batches 32,4096 --seeds 1

A small GPT (ringreduce.train) sees the same number of samples with each batch, so larger batches make fewer steps. The
learning rates are those that were best for the smallest batch: of 0.003 and 0.01 for AdamW, and of 0.005, 0.01, 0.02
and 0.04 for LAMB. The columns:

- fixed: the learning rate of the smallest batch, without a warm-up.
- scaled: the learning rate grows with the root of the batch, and rises in the first eighth of the steps.

Batches of more than 512 samples are accumulated from parts of 512. The loss does not depend on the number of ranks, so
one rank suffices.
"""

from __future__ import annotations

import statistics
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import torch

import ringreduce
from bench.turns import add_json_option, keep
from ringreduce.text import markdown
from ringreduce.train.config import Config, replace
from ringreduce.train.trainer import Trainer

BASE, PART = 32, 512
ROOT = {"base_batch": BASE, "batch_scaling": "sqrt"}
METHODS: dict[str, dict[str, Any]] = {
    "AdamW fixed": {"learning_rate": 3e-3},
    "AdamW scaled": {"learning_rate": 3e-3, **ROOT},
    "LAMB scaled": {"optimizer": "lamb", "learning_rate": 2e-2, **ROOT},
}
CONFIG = Config(layers=2, heads=2, width=32, context=16, text_bytes=4 << 20, evaluate_samples=4096, threads=1)


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", default="32,128,512,2048,4096", help="global batches")
    parser.add_argument("--samples", type=int, default=1 << 16, help="samples of each training (65536)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (1)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    add_json_option(parser)
    options = parser.parse_args()
    options.batches = [int(text) for text in options.batches.split(",")]
    return options


def loss(name: str, batch: int, samples: int, seed: int) -> float:
    """Returns the loss on held-out bytes, or infinity if the training diverges."""
    steps = samples // batch
    config = replace(
        CONFIG, batch=batch, steps=steps, seed=seed, accumulation=max(batch // PART, 1),
        warmup=0 if name.endswith("fixed") else max(steps // 8, 1), **METHODS[name],
    )  # fmt: skip
    trainer = Trainer(config, ringreduce.local_group(1)[0])
    while trainer.done < steps:
        trainer.step()
    found = trainer.evaluate()["validation_loss"]
    return found if found < float("inf") else float("inf")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    found: dict[str, dict[int, list[float]]] = {name: {} for name in options.methods}
    for batch in options.batches:
        for name in options.methods:
            found[name][batch] = [loss(name, batch, options.samples, seed) for seed in range(options.seeds)]
            print(f"batch {batch}, {name}: {found[name][batch]}", file=sys.stderr, flush=True)
    rows = [["batch", "steps", *options.methods]]
    for batch in options.batches:
        cells = [f"{statistics.median(found[name][batch]):.3f}" for name in options.methods]
        rows.append([f"{batch:,}", f"{options.samples // batch:,}", *cells])
    print(f"loss after {options.samples:,} samples, median of the seeds: {options.seeds}\n\n{markdown(rows)}")
    keep(options, "large_batches", [{"found": found, **vars(options)}])


if __name__ == "__main__":
    main()
