"""Measures the time to a fixed loss if one of four ranks is three times slower than the others.

    python3 -m bench.training.straggler
    python3 -m bench.training.straggler --methods synchronous "balanced shares" --seeds 1

Each rank trains the convnet of ringreduce.train on the digits, with real gradients. The time of computation is
simulated: before each backward pass a rank sleeps for a fixed time per sample, and the slow rank for three times as
long. Sleeping ranks do not need their core, so four of them run on two cores as if each had its own. The time of the
real gradients is measured, too, and is printed beside the simulated time: it is what the cores add.

Every method has the same seeds, samples, batch and optimizer. After every eighth step, all ranks evaluate the common
model on all held-out digits, which is not timed. The time to the loss is that of the slowest rank, up to the first
evaluation that is below it.

- synchronous: gradients are averaged in each step. All ranks wait for the slow one.
- balanced shares: the same, with shares of the batch that follow the measured speed (ringreduce.balance).
- LocalSGD: parameters are averaged after 8 local steps, the same number on all ranks. They still wait for the slow one.
- adaptive LocalSGD: the slow rank makes fewer steps in a round, in proportion to its measured speed.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
import torch._dynamo  # imported once, before ranks are forked

import ringreduce
from bench.turns import add_json_option, keep, rotated
from ringreduce.text import markdown
from ringreduce.train.config import Config, replace
from ringreduce.train.trainer import Trainer

SYNCHRONOUS = "synchronous"
LOCAL: dict[str, Any] = {"low_communication": "local_sgd", "local_steps": 8}
METHODS: dict[str, dict[str, Any]] = {
    SYNCHRONOUS: {},
    "balanced shares": {"balance": True, "balance_every": 5},
    "LocalSGD": LOCAL,
    "adaptive LocalSGD": {**LOCAL, "adaptive_steps": True},
}
GOALS = ("balanced shares", "adaptive LocalSGD")  # 1.5 times as fast as the synchronous run
RANKS, SLOW, FACTOR = 4, 3, 3
EVERY = 8  # steps between two evaluations
CONFIG = Config(
    task="digits", batch=64, channels=4, steps=800, optimizer="sgd", learning_rate=0.01, schedule="constant", warmup=8,
    sync_batch_norm=False, clip=0.0, evaluate_samples=360, timeout=60,
)  # fmt: skip


class Straggler(Trainer):
    """A trainer whose computation takes a fixed time per sample, and on one rank several times as long."""

    sample_ms = 0.0
    slept = 0.0

    def _backward(self, number: int) -> Any:
        samples = len(self._peek())
        seconds = 1e-3 * self.sample_ms * samples * (FACTOR if self.comm.rank == SLOW else 1)
        time.sleep(seconds)
        self.slept += seconds
        return super()._backward(number)

    def _peek(self) -> Any:
        """Returns the inputs of the next micro-batch, and leaves it to be taken."""
        batch = next(self._batches)
        rest = self._batches
        self._batches = (one for part in ((batch,), rest) for one in part)
        return batch[0]


def train(comm: Any, config: Config, loss: float, sample_ms: float) -> dict[str, Any]:
    """Trains until the loss on the held-out digits is below ``loss``. Returns steps, seconds, and how each rank did."""
    torch.set_num_threads(1)
    trainer = Straggler(config, comm)
    trainer.sample_ms = sample_ms
    seconds, curve = 0.0, []
    while trainer.done < config.steps:
        comm.barrier()
        began = time.monotonic()
        for _ in range(EVERY):
            trainer.step()
        own = torch.tensor([time.monotonic() - began], dtype=torch.float64)
        seconds += comm.all_reduce(own, "max").item()
        curve.append((trainer.done, seconds, trainer.evaluate()["validation_loss"]))
        if curve[-1][2] < loss:
            break
    pace = getattr(trainer.outer, "_pace", None)
    shares = trainer.balance.shares if trainer.balance else pace.steps if pace else None
    reached = curve[-1][2] < loss
    slept = comm.all_gather(torch.tensor([trainer.slept])).max().item()
    return {
        "steps": trainer.done,
        "seconds": seconds if reached else None,
        "slept": slept,
        "curve": curve,
        "shares": shares,
    }


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--loss", type=float, default=0.3, help="the loss to reach (0.3)")
    parser.add_argument("--sample-ms", type=float, default=3.0, help="simulated time of a sample (3)")
    add_json_option(parser)
    options = parser.parse_args()
    if SYNCHRONOUS not in options.methods:
        parser.error(f"--methods must include {SYNCHRONOUS}")
    return options


HEAD = [
    "",
    "steps",
    "s to the loss",
    "simulated",
    "x synchronous",
    "of each seed",
    "samples or steps of the ranks",
]


def table(found: dict[str, list[dict[str, Any]]]) -> tuple[str, str]:
    """Returns the table of medians over the seeds, and that of the goals."""
    rows, goals = [HEAD], [["goal", "", "measured", ""]]
    base = [one["seconds"] for one in found[SYNCHRONOUS]]
    for name, runs in found.items():
        seconds = [one["seconds"] for one in runs]
        if None in seconds or None in base:
            rows.append([name, "the loss was not reached", *[""] * (len(HEAD) - 2)])
            continue
        faster = [one / own for one, own in zip(base, seconds, strict=True)]
        middle = statistics.median(faster)
        steps, slept = (statistics.median(one[key] for one in runs) for key in ("steps", "slept"))
        times = [f"{steps:.0f}", f"{statistics.median(seconds):.2f}", f"{slept:.2f}", f"{middle:.2f}"]
        shares = " ".join(map(str, runs[0]["shares"] or []))
        rows.append([name, *times, ", ".join(f"{one:.2f}" for one in faster), shares])
        if name in GOALS:
            goals.append([name, ">= 1.5", f"{middle:.2f}", "yes" if middle >= 1.5 else "NO"])
    return markdown(rows), markdown(goals)


def main() -> None:
    options = parse_arguments()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.methods}
    for seed in range(options.seeds):
        for name in rotated(options.methods, seed):
            config = replace(CONFIG, seed=seed, **METHODS[name])
            run = ringreduce.run(train, RANKS, config, options.loss, options.sample_ms, timeout=60)[0]
            found[name].append(run)
            print(f"seed {seed}, {name}: {run['steps']} steps, {run['seconds']} s, loss {run['curve'][-1][2]:.3f}",
                  file=sys.stderr, flush=True)  # fmt: skip
    rows, goals = table(found)
    ranks = f"{RANKS} ranks, rank {SLOW} is {FACTOR} times slower"
    print(f"{ranks}; {options.sample_ms:g} ms per sample, batch {CONFIG.batch}; to a loss of {options.loss:g}; "
          f"medians of {options.seeds} seeds\n\n{rows}\n\n{goals}")  # fmt: skip
    keep(options, "straggler", [{"found": found, **vars(options)}])


if __name__ == "__main__":
    main()
