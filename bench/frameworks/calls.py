"""What the comparisons of a framework's calls share: contestants take turns, and a table shows medians and ratios."""

from __future__ import annotations

import os
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence

from bench.turns import rotated, span
from ringreduce._engine import probe_exchange
from ringreduce.bench.programs import run_program
from ringreduce.bench.results import mode_of
from ringreduce.text import human_bytes, human_us, markdown

OURS = "ringreduce"

Times = dict[tuple[str, int], list[float]]  # of one contestant: kind and bytes, and a median for each launch
Command = Callable[[str, int], tuple[list[str], dict[str, str]]]  # a contestant and a number of ranks


def parse_arguments(description: str, sizes: Iterable[int]) -> Namespace:
    parser = ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per figure")
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=list(sizes)
    )
    return parser.parse_args()


def ours(ranks: int, *words: str) -> list[str]:
    """Returns the command line that starts a Python program with ``ringreduce run``."""
    return [sys.executable, "-m", "ringreduce", "run", "-n", str(ranks), sys.executable, *words]


def compare(what: str, peers: Sequence[str], command: Command, options: Namespace) -> None:
    """Measures ringreduce and its peers in turns, and prints a table.

    Args:
        command: returns how to start a contestant: the command line and the variables to add to the environment.
    """
    found: dict[str, Times] = {name: {} for name in [OURS, *peers]}
    more = ["--sizes", ",".join(map(str, options.sizes)), "--budget", str(options.budget)]
    before = probe_exchange()
    for launch in range(options.launches):
        for name in rotated(found, launch):
            print(f"launch {launch + 1} of {options.launches}: {name}", file=sys.stderr, flush=True)
            words, variables = command(name, options.ranks)
            rows, problem, last = run_program([*words, *more], {**os.environ, **variables}, 300)
            if problem or any(row["wrong"] for row in rows):
                raise SystemExit(f"{name}: {problem or 'wrong results'} {last}")
            for row in rows:
                found[name].setdefault((row["kind"], row["bytes"]), []).append(row["median_us"])
    mode = mode_of(before, probe_exchange())
    print(f"all_reduce of float32 inside {what}, {options.ranks} ranks, microseconds, {mode} mode\n")
    print(table(found))


def ratio(times: Times, own: Times, key: tuple[str, int]) -> str:
    """Returns how many times as long as ours it takes: the median over launches, and the range."""
    each = [theirs / ours for theirs, ours in zip(times[key], own[key], strict=True)]
    return f"{statistics.median(each):.2f} ({span(each)})"


def table(found: dict[str, Times]) -> str:
    own = found[OURS]
    rows = [
        ["", "size", OURS, "spread", *(word for name in found if name != OURS for word in (name, "of ours"))]
    ]
    for kind, nbytes in sorted(own):
        times = own[kind, nbytes]
        spread = f"±{50 * (max(times) - min(times)) / statistics.median(times):.0f}%"
        row = [kind, human_bytes(nbytes), human_us(statistics.median(times)), spread]
        for name, others in found.items():
            if name != OURS:
                theirs = others[kind, nbytes]
                row += [human_us(statistics.median(theirs)), ratio(others, own, (kind, nbytes))]
        rows.append(row)
    return markdown(rows)
