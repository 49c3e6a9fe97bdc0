"""Measures training between two hosts with compressed gradients: steps per second, final loss and bytes sent.

    python3 -m bench.training.compression
    python3 -m bench.training.compression --rate 1gbit --methods "float32,1-bit sign"

The hosts are those of hosts.py. A model of 1.4 million parameters learns to predict the next byte of the sources of
Python's standard library (byte_model.py), with the same Adam, learning rate, batches and number of steps for all
methods. Two methods warm up during a share of the steps, as in their papers (DGC's share is smaller). In the warm-up,
signs are not compressed, and top-k decreases from 25 per cent. The columns:

- steps/s: the median rate after the warm-up, over the limited link, in short trainings with the same share of warm-up.
- whole run: the rate over all steps of these trainings, including the warm-up, divided by float32's; a ratio of means.
- loss: the loss on held-out bytes at the end of a whole training over shared memory. The arithmetic is the same,
  because there is only one order in which to add the numbers of two ranks.
- counted, sent: the median number of bytes per rank and step after the warm-up, as counted by the state, and as
  counted by the interface with all headers.
"""

from __future__ import annotations

import statistics
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import ringreduce
from bench.network.hosts import Hosts
from bench.training.between_hosts import printed
from bench.training.compression_rank import FLOAT32, METHODS, WARM_UP, warm_steps, whole_training
from bench.turns import add_json_option, keep, rotated
from ringreduce.text import markdown

GOALS = ("1-bit sign", "top-k 1%", "PowerSGD 32")  # 3 x float32's steps/s at a loss within 2 per cent
LIMIT = 170.0  # seconds for one launch of the timed steps


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="100mbit", help="rate of a host's link, in tc's notation")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--steps", type=int, default=800, help="steps of a whole training")
    parser.add_argument("--timed", type=int, default=20, help="steps over the link in each launch")
    parser.add_argument("--launches", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    add_json_option(parser)
    options = parser.parse_args()
    unknown = set(options.methods) - set(METHODS)
    if unknown or FLOAT32 not in options.methods:
        parser.error(f"choose --methods from {', '.join(METHODS)}, including {FLOAT32}")
    return options


def timed_launch(hosts: Hosts, names: list[str], steps: int) -> list[dict[str, Any]]:
    """Starts two processes, and returns a line for each method."""
    words = ["--methods", ",".join(names), "--steps", str(steps)]
    return printed(hosts, "bench.training.compression_rank", words, LIMIT)


def timed(options: Namespace) -> dict[str, list[dict[str, Any]]]:
    """Returns the lines of all launches by method. The order of the methods is rotated."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.methods}
    with Hosts(2, options.rate) as hosts:
        for launch in range(options.launches):
            shift = launch * len(options.methods) // options.launches
            names = rotated(options.methods, shift)
            print(f"launch {launch + 1} of {options.launches}", file=sys.stderr, flush=True)
            for line in timed_launch(hosts, names, options.timed):
                found[line["method"]].append(line)
    return found


def losses(options: Namespace) -> dict[str, float]:
    found = {}
    for name in options.methods:
        print(f"{options.steps} steps of {name}", file=sys.stderr, flush=True)
        found[name], _ = ringreduce.run(whole_training, 2, name, options.steps, options.seed)
    return found


def row(name: str, options: Namespace, times: dict[str, Any], loss: dict[str, float]) -> list[Any]:
    """Returns a row of the table: steps per second with their quartiles, ratios to float32, and bytes."""
    low, middle, high = statistics.quantiles(past_warm_up(times[name], "seconds", name, options), n=4)
    plain = statistics.median(past_warm_up(times[FLOAT32], "seconds", FLOAT32, options))
    whole = mean(times[FLOAT32]) / mean(times[name])
    counted, sent = (
        statistics.median(past_warm_up(times[name], key, name, options)) for key in ("counted", "wire")
    )
    return [name, 1 / middle, 50 * (high - low) / middle, plain / middle, whole, loss[name],
            loss[name] / loss[FLOAT32], counted, sent]  # fmt: skip


def past_warm_up(lines: list[dict[str, Any]], key: str, name: str, options: Namespace) -> list[float]:
    """Returns the values of all launches after the warm-up.

    The first two steps never count, because buckets are arranged and memory is allocated in them.
    """
    return [value for line in lines for value in line[key][max(warm_steps(name, options.timed), 2) :]]


def mean(lines: list[dict[str, Any]]) -> float:
    """Returns the mean seconds per step over all steps."""
    return statistics.mean(value for line in lines for value in line["seconds"])


def table(rows: list[list[Any]]) -> str:
    head = ["", "steps/s", "", "x float32", "whole run", "loss", "x float32", "counted", "sent"]
    shown = [
        [name, f"{rate:.2f}", f"±{spread:.0f}%", f"{faster:.2f}", f"{whole:.2f}", f"{loss:.4f}", f"{worse:.4f}",
         f"{counted:,.0f}", f"{sent:,.0f}"]
        for name, rate, spread, faster, whole, loss, worse, counted, sent in rows
    ]  # fmt: skip
    return markdown([head, *shown])


def goals(rows: list[list[Any]]) -> str:
    lines = [["goal", "steps/s >= 3 x", "whole run >= 3 x", "loss <= 1.02 x"]]
    for name, _, _, faster, whole, _, worse, *_ in rows:
        if name in GOALS:
            lines.append(
                [name, *("yes" if met else "NO" for met in (faster >= 3, whole >= 3, worse <= 1.02))]
            )
    return markdown(lines)


def main() -> None:
    options = parse_arguments()
    if reason := Hosts.permitted():
        raise SystemExit(reason)
    times, loss = timed(options), losses(options)
    rows = [row(name, options, times, loss) for name in options.methods]
    parameters = times[FLOAT32][0]["parameters"]
    print(
        f"2 ranks, {options.rate}, {parameters:,} parameters, {options.steps} steps, seed {options.seed}; warm-up: "
        f"{', '.join(f'{name} {100 * share:.0f} per cent' for name, share in WARM_UP.items())}\n\n"
        f"{table(rows)}\n\n{goals(rows)}"
    )
    keep(options, "compression", [{"times": times, "losses": loss, **vars(options)}])


if __name__ == "__main__":
    main()
