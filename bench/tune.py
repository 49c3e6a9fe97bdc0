"""Measures which algorithm and slice length is fastest, and writes the table behind algorithm="auto".

Usage: python3 bench/tune.py [--ranks 2,4,8] [--collectives all_reduce,...] [--rounds 3] [--write]

Candidates are measured in turn, several rounds of all of them, so that a change of the machine's mood hits all
alike; the median over the rounds decides. A row of the table changes from one size to the next only where the
gain is worth it. Needs build/bench/bench_collectives (make bench-cpp).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "bench" / "bench_collectives"
TABLE = ROOT / "csrc" / "engine" / "tuning_table.cpp"
CORES = len(os.sched_getaffinity(0))
KIB, MIB = 1 << 10, 1 << 20
WORTH = 1.05  # a switch must be this much faster


class Candidate(NamedTuple):
    algorithm: str
    slice_bytes: int


ALGORITHMS = {
    "all_reduce": [
        "one_shot",
        "two_shot",
        "recursive_doubling",
        "halving_doubling",
        "ring",
        "circulant",
        "tree",
    ],
    "reduce_scatter": ["direct", "ring", "recursive_halving", "bruck"],
    "all_gather": ["direct", "ring", "recursive_doubling", "bruck"],
}
SIZES = [64, 512, 2 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB,
         MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB]  # fmt: skip


def candidates(collective: str, size: int) -> list[Candidate]:
    slices = [s * KIB for s in (16, 32, 64, 128, 256, 512) if s * KIB <= max(size, 16 * KIB)]
    if size <= 16 * KIB:
        slices = [64 * KIB]
    found = []
    for algorithm in ALGORITHMS[collective]:
        if size > 64 * KIB and algorithm in ("one_shot", "recursive_doubling", "tree"):
            continue
        if size > MIB and algorithm not in ("two_shot", "ring", "direct"):
            continue
        found += [Candidate(algorithm, s) for s in slices]
    return found


def measure(
    collective: str, ranks: int, size: int, candidate: Candidate, memory: str, budget: float
) -> float:
    """Microseconds."""
    command = [str(PROGRAM), "--ranks", str(ranks), "--sizes", str(size), "--collective", collective]
    command += [
        "--algorithm",
        candidate.algorithm,
        "--slice",
        str(candidate.slice_bytes),
        "--budget",
        str(budget),
    ]
    output = subprocess.run(
        [*command, "--memory", memory], capture_output=True, text=True, check=True, timeout=120
    )
    answer = json.loads(output.stdout.splitlines()[-1])
    if answer["wrong"]:
        raise SystemExit(f"wrong results: {command}")
    return float(answer["median_us"])


def best_by_size(
    collective: str, ranks: int, memory: str, rounds: int, budget: float
) -> dict[int, Candidate]:
    choice: dict[int, Candidate] = {}
    previous: Candidate | None = None
    for size in SIZES:
        if size % (4 * ranks):
            continue
        times: dict[Candidate, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for candidate in candidates(collective, size):
                times[candidate].append(measure(collective, ranks, size, candidate, memory, budget))
        median = {candidate: statistics.median(values) for candidate, values in times.items()}
        best = min(median, key=lambda candidate: median[candidate])
        if previous in median and median[previous] <= WORTH * median[best]:
            best = previous
        choice[size] = previous = best
        ranking = sorted(median.items(), key=lambda item: item[1])[:4]
        line = ", ".join(f"{c.algorithm}/{c.slice_bytes // KIB}K {t:.2f}" for c, t in ranking)
        print(
            f"{collective} {ranks} ranks {size:>9} B: {best.algorithm}/{best.slice_bytes // KIB}K   ({line})",
            flush=True,
        )
    return choice


def rows(collective: str, ranks: int, last: bool, choice: dict[int, Candidate]) -> list[str]:
    """The table's rows of one collective and world, the largest size standing for all larger ones."""
    sizes = sorted(choice)
    found = []
    for i, size in enumerate(sizes):
        if i + 1 < len(sizes) and choice[sizes[i + 1]] == choice[size]:
            continue
        limit = "all" if i + 1 == len(sizes) else units(size)
        world = "any_world" if last else str(ranks)
        crowded = int(ranks > CORES)
        c = choice[size]
        found.append(
            f'    {{C::{collective}, {world}, {crowded}, {limit}, "{c.algorithm}", {units(c.slice_bytes)}}},'
        )
    return found


def units(size: int) -> str:
    if size >= MIB and size % MIB == 0:
        return f"{size // MIB} * MiB"
    return f"{size // KIB} * KiB" if size >= KIB else str(size)


def write(measured: list[str]) -> None:
    text = TABLE.read_text()
    begin, end = "    // measured, by bench/tune.py\n", "    // not measured\n"
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    TABLE.write_text(head + begin + "\n".join(measured) + "\n" + end + tail)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--collectives", default="all_reduce,reduce_scatter,all_gather")
    parser.add_argument("--memory", default="ordinary", choices=["ordinary", "shared"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.05, help="seconds per candidate, size and round")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    worlds = [int(n) for n in options.ranks.split(",")]
    measured = []
    for collective in options.collectives.split(","):
        for ranks in worlds:
            fitting = [n for n in worlds if (n > CORES) == (ranks > CORES)]
            choice = best_by_size(collective, ranks, options.memory, options.rounds, options.budget)
            measured += rows(collective, ranks, ranks == max(fitting), choice)
    print("\n".join(measured))
    if options.write:
        write(measured)


if __name__ == "__main__":
    main()
