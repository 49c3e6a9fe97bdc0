"""Measures the cost of checking that all ranks make the same call, by comparing with a build without the check.

    cmake -DRINGREDUCE_BENCH=ON build/dev && ninja -C build/dev bench_collectives bench_collectives_unchecked \
        ringreduce_unchecked
    python3 -m bench.engine.contract --launches 10

The calls are all-reduces of 8 B from C++, where they are shortest, and dist.all_reduce under torch.distributed.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from functools import partial

from bench.peers.contestants import BUILD, PROGRAMS, ROOT
from ringreduce.bench.programs import Contestant, Question, compare
from ringreduce.bench.report import mode_text, report

PROGRAM = BUILD.parent / "bench"
PYTHON = ROOT / ".venv" / "bin" / "python"


def from_c(name: str, program: str) -> Contestant:
    path = PROGRAM / program
    return Contestant(name, lambda question: [str(path), *question.options(name)], needs=(path,))


def under_torch(name: str, environment: dict[str, str]) -> Contestant:
    def command(question: Question) -> list[str]:
        return [
            str(PYTHON),
            str(PROGRAMS / "gloo.py"),
            "--backend",
            "ringreduce",
            *question.options(name),
        ]

    return Contestant(name, command, lambda question: environment, needs=(PYTHON,))


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per size")
    options = parser.parse_args()
    unchecked = PROGRAM / "unchecked"
    if not unchecked.exists():
        sys.exit(f"build it first: {__doc__.splitlines()[2].strip()} ...")
    pairs = (
        [
            partial(from_c, "checked", "bench_collectives"),
            partial(from_c, "unchecked", "bench_collectives_unchecked"),
        ],
        [
            partial(under_torch, "checked under torch", {}),
            partial(under_torch, "unchecked under torch", {"LD_LIBRARY_PATH": str(unchecked)}),
        ],
    )
    question = Question("all_reduce", 2, (8,), options.budget)
    for pair in pairs:
        contestants = [make() for make in pair]
        results = compare(contestants, question, options.launches, timeout=60)
        print(mode_text(results.facts), "\n")
        text = report(results, question.collective, {contestants[1].name: [contestants[1].name]})
        print(text, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
