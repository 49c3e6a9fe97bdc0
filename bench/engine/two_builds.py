"""Compares small all-reduces of two builds of the library, in turns in one run: what does a change cost them?

    git worktree add ../before HEAD~ && make -C ../before fronts     # and cmake -DRINGREDUCE_BENCH=ON, as here
    python3 -m bench.engine.two_builds ../before --launches 10

The calls are all-reduces of 8 B from C++, where they are shortest, and dist.all_reduce under torch.distributed.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from bench.peers.contestants import PROGRAMS, ROOT
from ringreduce.bench.programs import Contestant, Question, compare
from ringreduce.bench.report import mode_text, report

PYTHON = ROOT / ".venv" / "bin" / "python"


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


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a folder with the other build")
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per launch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=["c", "torch"], help="only one of the two kinds")
    options = parser.parse_args()
    if not (options.before / "ringreduce").is_dir():
        sys.exit(f"{options.before} has no folder ringreduce")
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
