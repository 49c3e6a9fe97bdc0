"""Compares small all-reduces of two builds of the library, in turns in one run: what does a change cost them?

    git worktree add ../before HEAD~ && make -C ../before fronts     # and cmake -DRINGREDUCE_BENCH=ON, as here
    python3 -m bench.engine.two_builds ../before --launches 10
    python3 -m bench.engine.two_builds ../before --in-turn

The calls are all-reduces of 8 B from C++, where they are shortest, and dist.all_reduce under torch.distributed. With
--in-turn, they are all-reduces of 200 sizes in turn, beside the same calls with one size at a time.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.peers.contestants import PROGRAMS, ROOT
from ringreduce.bench.programs import Contestant, Question, compare, run_program
from ringreduce.bench.report import mode_text, report
from ringreduce.text import human_us, markdown

PYTHON = ROOT / ".venv" / "bin" / "python"
FRONTS = ("c", "python", "torch")
# With the number of calls that are timed together: what takes longer than the clock need not be.
SIZES = {
    "20 B to 4 KB": ([20 * n for n in range(1, 201)], 50),
    "256 B to 50 KiB, by 64 floats": ([256 * n for n in range(1, 201)], 50),
    "64 KiB to 1 MB": ([(64 << 10) + 4864 * n for n in range(200)], 1),
}


def from_c(name: str, folder: Path) -> Contestant:
    program = folder / "build" / "bench" / "bench_collectives"
    return Contestant(name, lambda question: [str(program), *question.options(name)], needs=(program,))


def under_torch(name: str, folder: Path) -> Contestant:
    def command(question: Question) -> list[str]:
        program = str(PROGRAMS / "gloo.py")
        return [str(PYTHON), program, "--backend", "ringreduce", *question.options(name)]

    return Contestant(
        name, command, lambda question: {"PYTHONPATH": str(folder)}, needs=(PYTHON, folder / "ringreduce")
    )


def program_in_turn(front: str, folder: Path) -> list[str]:
    if front == "c":
        return [str(folder / "build" / "bench" / "bench_collectives")]
    return [str(PYTHON), str(ROOT / "bench" / "engine" / "sizes_in_turn.py"), front]


def compare_in_turn(builds: dict[str, Path], options: Namespace) -> None:
    """Prints the times of one size at a time and of all in turn: medians over launches, and the ratios' range."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for launch in range(options.launches):
        for front in [options.only] if options.only else FRONTS:
            for what, (sizes, together) in SIZES.items():
                mixed = random.Random(1).sample(sizes, len(sizes))
                for build in list(builds)[:: 1 if launch % 2 else -1]:
                    words = [
                        "--ranks",
                        options.ranks,
                        "--sizes",
                        ",".join(map(str, mixed)),
                        "--in-turn",
                        together,
                    ]
                    command = [*program_in_turn(front, builds[build]), *map(str, words)]
                    environment = {**os.environ, "PYTHONPATH": str(builds[build])}
                    rows, problem, last = run_program(command, environment, 300)
                    if problem:
                        sys.exit(f"{front}, {build}: {problem} {last}")
                    found.setdefault((front, what, build), []).extend(rows)
    table = [["front", "sizes", "build", "one size", "200 in turn", "ratio"]]
    for key, rows in found.items():
        alone, in_turn = (statistics.median(row[name] for row in rows) for name in ("alone_us", "in_turn_us"))
        ratios = sorted(row["in_turn_us"] / row["alone_us"] for row in rows)
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        table.append([*key, human_us(alone), human_us(in_turn), spread])
    print(markdown(table), flush=True)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a folder with the other build")
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per launch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=FRONTS, help="only one kind of calls")
    parser.add_argument("--in-turn", action="store_true", help="calls of 200 sizes in turn")
    options = parser.parse_args()
    if not (options.before / "ringreduce").is_dir():
        sys.exit(f"{options.before} has no folder ringreduce")
    if options.in_turn:
        return compare_in_turn({"before": options.before.resolve(), "now": ROOT}, options)
    question = Question("all_reduce", options.ranks, (8,), options.budget)
    for kind, make in (("c", from_c), ("torch", under_torch)):
        if options.only not in (None, kind):
            continue
        contestants = [make("now", ROOT), make("before", options.before.resolve())]
        results = compare(contestants, question, options.launches, timeout=60)
        print(mode_text(results.facts), "\n")
        print(report(results, question.collective, {"before": ["before"]}), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
