"""Measures scaling efficiency and exposed communication of the trainer's GPT on two ranks with a core each.

    python3 -m bench.training.training
    python3 -m bench.training.training --buckets 0.25,1,25

For the second table, buckets of several sizes take turns in the same processes. On a shared machine, another program
may have the core of a rank that the others wait for. The first table therefore also shows the rate of ranks that train
side by side without exchanging anything.
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser, Namespace
from typing import Any

import ringreduce
from bench.turns import rotated
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown
from ringreduce.train.config import Config, replace
from ringreduce.train.efficiency import SIDE_BY_SIDE, TOGETHER, Efficiency, measure, median, table
from ringreduce.train.trainer import Trainer
from ringreduce.train.training_log import make_row
from ringreduce.train.training_run import on_ranks

WARM_UP = 3
# For each bucket size and round: seconds, communication, exposed, exposed on the last rank, exposed share.
Rows = dict[float, list[list[float]]]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=6, help="steps in each round (6)")
    parser.add_argument(
        "--buckets", default="0.25,0.5,1,25", help="bucket sizes in MiB, or none for no second table"
    )
    return parser.parse_args()


def buckets(comm: Any, config: Config, sizes: list[float], rounds: int, steps: int) -> Rows:
    """Measures the same training with buckets of these sizes, in turn."""
    settings = [
        replace(config, bucket_mb=size, first_bucket_mb=min(size, config.first_bucket_mb)) for size in sizes
    ]
    trainers = {size: Trainer(one, comm) for size, one in zip(sizes, settings, strict=True)}
    found: Rows = {size: [] for size in sizes}
    for trainer in trainers.values():
        for _ in range(WARM_UP):
            trainer.step()
    for number in range(rounds):
        for size in rotated(sizes, number):
            comm.barrier()
            done = [trainers[size].step() for _ in range(steps)]
            row = make_row(trainers[size], done)
            last = row["exposed_s"] - row["waiting_for_ranks_s"]
            times = [row[name] for name in ("step_s", "communication_s", "exposed_s")]
            found[size].append([*times, last, row["exposed_share"]])
    return found


def buckets_text(found: Rows) -> str:
    rows = [["MiB", "step ms", "communication ms", "exposed ms", "of the last rank ms", "exposed part"]]
    for size, rounds in found.items():
        *times, share = (statistics.median(values) for values in zip(*rounds, strict=True))
        step, *others = (1e3 * seconds for seconds in times)
        rows.append([f"{size:g}", f"{step:.1f}", *(f"{one:.2f}" for one in (*others, share))])
    return markdown(rows)


def goals_text(found: Efficiency) -> str:
    of_ceiling = [
        together / apart
        for together, apart in zip(found.rates[TOGETHER], found.rates[SIDE_BY_SIDE], strict=True)
    ]
    rows = [["goal", "", "measured", ""]]
    for what, values, wanted, at_least in (
        ("scaling efficiency", found.ratios(TOGETHER), 0.9, True),
        ("exposed share of communication", [row["exposed_share"] for row in found.rows], 0.2, False),
        ("rate of ranks together / side by side", of_ceiling, None, True),
    ):
        value, quartiles = median(values)
        good = "" if wanted is None else "yes" if (float(value) >= wanted) == at_least else "NO"
        limit = "" if wanted is None else f"{'>=' if at_least else '<='} {wanted:g}"
        rows.append([what, limit, f"{value} {quartiles}", good])
    return markdown(rows)


def main() -> None:
    options = parse_arguments()
    config = Config(ranks=options.ranks)
    before = _engine.probe_exchange()
    found = on_ranks(measure, config, options.rounds, options.steps)
    parts = [table(found), goals_text(found)]
    if options.buckets != "none":
        sizes = [float(text) for text in options.buckets.split(",")]
        parts.append(buckets_text(on_ranks(buckets, config, sizes, options.rounds, options.steps)))
    parameters = sum(p.numel() for p in Trainer(Config(), *ringreduce.local_group(1)).module.parameters())
    mode = mode_of(before, _engine.probe_exchange())
    print(f"GPT of {parameters / 1e6:.2f} M parameters, {options.ranks} ranks, {mode} mode\n")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
