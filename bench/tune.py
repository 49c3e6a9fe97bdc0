"""Measures which algorithm and slice length is fastest, and writes the table behind algorithm="auto".

Usage: python3 bench/tune.py [--ranks 2,4,8] [--collectives all_reduce,...] [--rounds 3] [--write]

Candidates are measured in turn, several rounds of all of them, so that a change of the machine's mood hits
all alike; the median over the rounds decides. A row of the table changes from one size to the next only where the
gain is worth it. Needs build/bench/bench_collectives (make bench-cpp).
"""

from __future__ import annotations

import argparse
import json
import math
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
    lanes: int

    def __str__(self) -> str:
        return f"{self.algorithm}/{self.slice_bytes // KIB}Kx{self.lanes}"


SMALL = ["one_shot", "two_shot", "recursive_doubling", "halving_doubling", "circulant", "tree"]
BLOCKS = ["direct", "ring", "recursive_halving", "recursive_doubling", "bruck"]
LARGE = {"all_reduce": ["two_shot", "ring"], "reduce_scatter": ["direct"], "all_gather": ["direct"]}
SMALL_SIZES = [64, 512, 2 * KIB, 8 * KIB, 16 * KIB, 32 * KIB]
LARGE_SIZES = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB]

Times = dict[int, dict[Candidate, list[float]]]  # by size, microseconds


def candidates(collective: str) -> list[tuple[Candidate, list[int]]]:
    """Who is measured at which sizes."""
    whole = collective == "all_reduce"
    absent = {"reduce_scatter": "recursive_doubling", "all_gather": "recursive_halving"}.get(collective)
    small = [name for name in (SMALL if whole else BLOCKS) if name != absent]
    found = [(Candidate(name, 64 * KIB, 1), SMALL_SIZES) for name in small]
    for name in LARGE[collective]:
        slices = (32, 64, 128, 256, 512) if name in ("two_shot", "direct") else (128,)
        found += [(Candidate(name, s * KIB, lanes), LARGE_SIZES) for s in slices for lanes in (1, 2, 4)]
    return found


def measure(
    collective: str, ranks: int, sizes: list[int], c: Candidate, memory: str, budget: float, into: Times
) -> None:
    command = [str(PROGRAM), "--ranks", str(ranks), "--collective", collective, "--memory", memory]
    command += ["--sizes", ",".join(map(str, sizes)), "--algorithm", c.algorithm]
    command += ["--slice", str(c.slice_bytes), "--lanes", str(c.lanes), "--budget", str(budget)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    for line in output.stdout.splitlines():
        answer = json.loads(line)
        if answer["wrong"]:
            raise SystemExit(f"wrong results: {command}")
        into[answer["bytes"]][c].append(float(answer["median_us"]))


def best_by_size(collective: str, ranks: int, rounds: int, budget: float) -> dict[int, Candidate]:
    """The choice for each size; ordinary and shared memory count alike where slices matter."""
    times: dict[str, Times] = {m: defaultdict(lambda: defaultdict(list)) for m in ("ordinary", "shared")}
    for _ in range(rounds):
        for candidate, sizes in candidates(collective):
            fitting = [size for size in sizes if size % (4 * ranks) == 0]
            for memory in ("ordinary", "shared") if sizes is LARGE_SIZES else ("ordinary",):
                measure(collective, ranks, fitting, candidate, memory, budget, times[memory])
    choice: dict[int, Candidate] = {}
    previous: Candidate | None = None
    for size, of_candidate in sorted(times["ordinary"].items()):
        score = {}
        for candidate, values in of_candidate.items():
            shared = times["shared"][size][candidate] or values
            score[candidate] = math.sqrt(statistics.median(values) * statistics.median(shared))
        best = min(score, key=lambda candidate: score[candidate])
        if previous in score and score[previous] <= WORTH * score[best]:
            best = previous
        choice[size] = previous = best
        ranking = ", ".join(f"{c} {t:.2f}" for c, t in sorted(score.items(), key=lambda item: item[1])[:4])
        print(f"{collective} {ranks} ranks {size:>9} B: {best}   ({ranking})", flush=True)
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
            f'    {{C::{collective}, {world}, {crowded}, {limit}, "{c.algorithm}", '
            f"{units(c.slice_bytes)}, {c.lanes}}},"
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
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget", type=float, default=0.03, help="seconds per candidate, size and round")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    worlds = [int(n) for n in options.ranks.split(",")]
    measured = []
    for collective in options.collectives.split(","):
        for ranks in worlds:
            fitting = [n for n in worlds if (n > CORES) == (ranks > CORES)]
            choice = best_by_size(collective, ranks, options.rounds, options.budget)
            measured += rows(collective, ranks, ranks == max(fitting), choice)
    print("\n".join(measured))
    if options.write:
        write(measured)


if __name__ == "__main__":
    main()
