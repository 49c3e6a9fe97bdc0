"""Compares predicted with measured training steps.

    python3 -m bench.training.planned                              # 2 and 4 ranks of this host
    python3 -m bench.training.planned --places 2x1gbit,4x10gbit     # 2 and 4 hosts, by their links
    python3 -m bench.training.planned --places 2x1gbit+10ms --rounds 5
    python3 -m bench.training.planned --places all --keep measured.json
    python3 -m bench.training.planned --again --keep measured.json

Hosts are network namespaces of this machine (hosts.py), which need root, and have a rank each. In each turn the costs
of collectives are fitted on these ranks, or come from a file. Then all ranks train each model with each strategy in
turns, in some of which rank 0 records a step without communication. The time of a step is that of the slowest rank, and
the median over rounds. The table shows medians over turns. Errors are medians of the turns'
errors: what else uses the cores then affects both the prediction and the measurement. ``--keep`` writes what was
fitted, recorded and measured to a file, and ``--again`` predicts from such a file and measures nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import ringreduce
from bench.network.hosts import Hosts
from bench.training.between_hosts import printed
from bench.training.planned_rank import SIDE_BY_SIDE, add_options, planned
from bench.turns import KEEP_FREED_MEMORY
from ringreduce.plan import Cluster, Device, Job, predict, strategy
from ringreduce.studies.model import Model
from ringreduce.text import markdown

PLACES = ["2", "4", *(f"{hosts}x{link}" for hosts in (2, 4) for link in ("1gbit", "10gbit", "1gbit+10ms"))]
BASE = "ddp"  # the strategy that others are compared with
TIE = 0.03  # two strategies are equally good if one is slower than the other by at most this
LIMIT = 2400.0  # seconds for a place
HEADING = [
    "place",
    "",
    "strategy",
    "recorded, ms",
    "side by side, ms",
    "measured, ms",
    "rounds",
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
    parser.add_argument("--keep", type=Path, help="a file of all figures, to which these are added")
    parser.add_argument("--again", action="store_true", help="predict from --keep again, and measure nothing")
    add_options(parser)
    options = parser.parse_args()
    options.places = PLACES if options.places == "all" else options.places.split(",")
    return options


def at(place: str, options: Namespace) -> list[dict[str, Any]]:
    """Measures at a place. Returns the turns of :func:`planned`."""
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
    turns: list[dict[str, Any]] = printed(hosts, "bench.training.planned_rank", more, LIMIT)[-1]
    return turns


def predicted(place: str, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each model and strategy: medians over turns of its measured and predicted times."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in turns:
        for row in of_turn(turn):
            found.setdefault((row["shape"], row["strategy"]), []).append(row)
    rows = []
    for (shape, name), each in found.items():
        keys = ("measured", "beside", "predicted", "alone", "error")
        rounds = [seconds for row in each for seconds in row["rounds"]]
        rows.append({
            "place": place, "shape": shape, "strategy": name, "rounds": (min(rounds), max(rounds)),
            **{key: median(row[key] for row in each) for key in keys},
        })  # fmt: skip
    return rows


def of_turn(turn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row for each model and strategy."""
    # Hosts that are namespaces of one machine share its cores, too.
    world, cores = turn["world"], turn["machine_cores"]
    device = Device(kind="cpu", cores=cores / world)
    cluster = Cluster(Model.model_validate(turn["costs"]), device, turn["ranks_per_host"])
    for model in turn["models"]:
        job, times = Job.model_validate(model["job"]), model["times"]
        for name in (each for each in times if each != SIDE_BY_SIDE):
            found, measured = predict(job, cluster, strategy(name), world), median(times[name])
            yield {
                "shape": model["shape"], "strategy": name, "rounds": times[name], "measured": measured,
                "beside": median(times[SIDE_BY_SIDE]), "predicted": found.seconds,
                "alone": max(1.0, world / cores) * found.samples / world / found.one_rank,
                "error": found.seconds / measured - 1,
            }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    lines: list[list[Any]] = [HEADING]
    for row in rows:
        alone, beside, measured, expected = (
            f"{1e3 * row[key]:.2f}" for key in ("alone", "beside", "measured", "predicted")
        )
        rounds = " to ".join(f"{1e3 * end:.1f}" for end in row["rounds"])
        names = row["place"], row["shape"], row["strategy"]
        lines.append([*names, alone, beside, measured, rounds, expected, f"{100 * row['error']:+.1f} %"])
    return markdown(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """Returns the errors, how often the best strategy was found, and the error of its gain, over all cells."""
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["place"], row["shape"]), {})[row["strategy"]] = row
    errors = sorted(abs(row["error"]) for row in rows)
    lines = [f"error of the step: median {100 * median(errors):.1f} %, largest {100 * errors[-1]:.1f} %"]
    right, ties, regrets, gains = 0, 0, [], []
    for cell in cells.values():
        best, chosen = (min(cell, key=lambda name: cell[name][key]) for key in ("measured", "predicted"))
        regrets.append(cell[chosen]["measured"] / cell[best]["measured"] - 1)
        right += best == chosen
        ties += best != chosen and regrets[-1] <= TIE
        if BASE in cell:
            gain = [cell[BASE][key] / cell[chosen][key] for key in ("measured", "predicted")]
            gains.append(abs(gain[1] / gain[0] - 1))
    lines.append(f"best strategy right in {right} of {len(cells)} cells, and in {ties} more one that is as fast, "
                 f"within {100 * TIE:.0f} %; the predicted one is slower than the best by "
                 f"{100 * median(regrets):.1f} % (median), {100 * max(regrets):.1f} % (most)")  # fmt: skip
    if gains:
        lines.append(
            f"error of its gain over {BASE}: median {100 * median(gains):.1f} %, most {100 * max(gains):.1f} %"
        )
    return "\n".join(lines)


def main() -> None:
    options = parse_arguments()
    os.environ.update(KEEP_FREED_MEMORY)
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    for place in () if options.again else options.places:
        kept[place] = at(place, options)
        if options.keep:
            options.keep.write_text(json.dumps(kept))
    rows = [row for place, turns in kept.items() for row in predicted(place, turns)]
    print(f"{table(rows)}\n\n{summary(rows)}")


if __name__ == "__main__":
    main()
