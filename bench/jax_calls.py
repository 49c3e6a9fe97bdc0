"""Compares all-reduces inside jax.jit with mpi4jax over Open MPI and MPICH, in turns.

    make jax-peers && .venv/bin/python -m pip install jax
    .venv/bin/python bench/jax_calls.py --ranks 2 --launches 3

"call" is a program of one all-reduce, with JAX's own time to start it. "loop" is one of 100 calls in a program with a
loop. Every rank has a core of its own. Times are medians of the slowest rank's times.
"""

from __future__ import annotations

import os
import statistics
import sys
from argparse import ArgumentParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # use the package that is built in this checkout

from ringreduce._engine import probe_exchange
from ringreduce.bench.mpi import environment, launcher
from ringreduce.bench.programs import run_program
from ringreduce.bench.report import human_bytes, human_us, markdown
from ringreduce.bench.results import mode_of

ROOT = Path(__file__).resolve().parents[1]
OURS = "ringreduce"
PEERS = {f"mpi4jax, {name}": vendor for name, vendor in (("Open MPI", "openmpi"), ("MPICH", "mpich"))}
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 32 << 20)
RANK = str(ROOT / "bench" / "jax_rank.py")

Times = dict[tuple[str, int], list[float]]  # of one contestant: kind and bytes, and a median for each launch


def command(name: str, ranks: int) -> tuple[list[str], dict[str, str]]:
    """Returns how to start a contestant: the command line and the variables to add to the environment."""
    if name == OURS:
        start = [sys.executable, "-m", "ringreduce", "run", "-n", str(ranks)]
        return [*start, sys.executable, RANK, "ringreduce"], {}
    home = ROOT / f".venv-jax-{PEERS[name]}"
    start = launcher(PEERS[name], home / "bin" / "mpirun", ranks)
    return [*start, str(home / "bin" / "python"), RANK, "mpi4jax"], environment(PEERS[name], home, ranks)


def ratio(times: Times, ours: Times, key: tuple[str, int]) -> str:
    """Returns how many times as long as ours it takes: the median over launches, and the range."""
    each = [theirs / own for theirs, own in zip(times[key], ours[key], strict=True)]
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def table(found: dict[str, Times]) -> str:
    ours = found[OURS]
    rows = [
        ["", "size", OURS, "spread", *(word for name in found if name != OURS for word in (name, "of ours"))]
    ]
    for kind, nbytes in sorted(ours):
        own = ours[kind, nbytes]
        spread = f"±{50 * (max(own) - min(own)) / statistics.median(own):.0f}%"
        row = [kind, human_bytes(nbytes), human_us(statistics.median(own)), spread]
        for name, times in found.items():
            if name != OURS:
                theirs = times[kind, nbytes]
                row += [human_us(statistics.median(theirs)), ratio(times, ours, (kind, nbytes))]
        rows.append(row)
    return markdown(rows)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per figure")
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=list(SIZES)
    )
    options = parser.parse_args()
    there = [name for name in PEERS if (ROOT / f".venv-jax-{PEERS[name]}" / ".ready").exists()]
    found: dict[str, Times] = {name: {} for name in [OURS, *there]}
    more = ["--sizes", ",".join(map(str, options.sizes)), "--budget", str(options.budget)]
    before = probe_exchange()
    for launch in range(options.launches):
        first = launch % len(found)
        for name in [*list(found)[first:], *list(found)[:first]]:
            print(f"launch {launch + 1} of {options.launches}: {name}", file=sys.stderr, flush=True)
            words, variables = command(name, options.ranks)
            rows, problem, last = run_program([*words, *more], {**os.environ, **variables}, 300)
            if problem or any(row["wrong"] for row in rows):
                raise SystemExit(f"{name}: {problem or 'wrong results'} {last}")
            for row in rows:
                found[name].setdefault((row["kind"], row["bytes"]), []).append(row["median_us"])
    mode = mode_of(before, probe_exchange())
    print(f"all_reduce of float32 inside jax.jit, {options.ranks} ranks, microseconds, {mode} mode\n")
    print(table(found))


if __name__ == "__main__":
    main()
