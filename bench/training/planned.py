"""Compares predicted with measured training steps.

    python3 -m bench.training.planned                              # 2 and 4 ranks of this host
    python3 -m bench.training.planned --places 2x1gbit,4x10gbit     # 2 and 4 hosts, by their links
    python3 -m bench.training.planned --places 2x1gbit+10ms --rounds 5
    python3 -m bench.training.planned --places all --keep rows.json

Hosts are network namespaces of this machine (hosts.py), which need root, and have a rank each. In each turn the costs
of collectives are fitted on these ranks, or come from a file. Then each model is recorded on rank 0, while a rank on
each other core does the same, and all ranks train with each strategy one after the other. The time of a step is that of
the slowest rank, and the median over rounds. The table shows medians over turns. Errors are medians of the turns'
errors: what else uses the cores then affects both the prediction and the measurement.
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median
from typing import Any

import ringreduce
from bench.network.hosts import Hosts
from bench.training.between_hosts import printed
from bench.training.planned_rank import add_options, planned
from bench.turns import KEEP_FREED_MEMORY
from ringreduce.text import markdown

PLACES = ["2", "4", *(f"{hosts}x{link}" for hosts in (2, 4) for link in ("1gbit", "10gbit", "1gbit+10ms"))]
BASE = "ddp"  # the strategy that others are compared with
LIMIT = 2400.0  # seconds for a place
HEADING = [
    "place",
    "",
    "strategy",
    "recorded, ms",
    "side by side, ms",
    "measured, ms",
    "predicted, ms",
    "error",
]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--places",
        default="2,4",
        help="numbers of ranks of this host, or of hosts with their links; or: all (2,4)",
    )
    parser.add_argument("--keep", type=Path, help="a file to which all figures are added")
    add_options(parser)
    options = parser.parse_args()
    options.places = PLACES if options.places == "all" else options.places.split(",")
    return options


def at(place: str, options: Namespace) -> list[dict[str, Any]]:
    """Measures at a place. Returns a row for each model and strategy."""
    ranks, _, link = place.partition("x")
    with tempfile.TemporaryDirectory() as folder:
        if not link:
            return ringreduce.run(planned, int(ranks), options, Path(folder), start="spawn", timeout=120.0)[0]
        rate, _, delay = link.partition("+")
        with Hosts(int(ranks), rate, float(delay.removesuffix("ms") or 0)) as hosts:
            return on_hosts(hosts, options)


def on_hosts(hosts: Hosts, options: Namespace) -> list[dict[str, Any]]:
    more = ["--turns", str(options.turns), "--rounds", str(options.rounds), "--budget", str(options.budget)]
    more += ["--strategies", ",".join(options.strategies)]
    more += ["--model", str(options.model)] if options.model else []
    more += ["--ranks", str(len(hosts))]
    rows: list[dict[str, Any]] = printed(hosts, "bench.training.planned_rank", more, LIMIT)[-1]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines: list[list[Any]] = [HEADING]
    for row in rows:
        times = (f"{1e3 * row[key]:.2f}" for key in ("alone", "beside", "measured", "predicted"))
        lines.append([row["place"], row["shape"], row["strategy"], *times, f"{100 * row['error']:+.1f} %"])
    return markdown(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """Returns the errors, how often the best strategy was found, and the error of its gain, over all cells."""
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["place"], row["shape"]), {})[row["strategy"]] = row
    errors = sorted(abs(row["error"]) for row in rows)
    lines = [f"error of the step: median {100 * median(errors):.1f} %, largest {100 * errors[-1]:.1f} %"]
    right, regrets, gains = 0, [], []
    for cell in cells.values():
        best, chosen = (min(cell, key=lambda name: cell[name][key]) for key in ("measured", "predicted"))
        right += best == chosen
        regrets.append(cell[chosen]["measured"] / cell[best]["measured"] - 1)
        if BASE in cell:
            gain = [cell[BASE][key] / cell[chosen][key] for key in ("measured", "predicted")]
            gains.append(abs(gain[1] / gain[0] - 1))
    lines.append(f"best strategy right in {right} of {len(cells)} cells; the predicted one is slower than the best by "
                 f"{100 * median(regrets):.1f} % (median), {100 * max(regrets):.1f} % (most)")  # fmt: skip
    if gains:
        lines.append(
            f"error of its gain over {BASE}: median {100 * median(gains):.1f} %, most {100 * max(gains):.1f} %"
        )
    return "\n".join(lines)


def main() -> None:
    options = parse_arguments()
    os.environ.update(KEEP_FREED_MEMORY)
    rows = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else []
    for place in options.places:
        rows = [row for row in rows if row["place"] != place]
        rows += [{"place": place, **row} for row in at(place, options)]
        if options.keep:
            options.keep.write_text(json.dumps(rows, indent=1))
    print(f"{table(rows)}\n\n{summary(rows)}")


if __name__ == "__main__":
    main()
