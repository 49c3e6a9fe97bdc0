"""Compares ranks that are threads of one process with processes: the table of docs/installing.md.

    make test-freethreaded                       # makes the environment without the GIL, and the extension for it
    python3 -m bench.engine.threads --launches 5

All-reduces from Python, under the Python that runs this program and under that of .venv-freethreaded.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from bench.peers.contestants import environment_of, ours_from_python
from ringreduce.bench.programs import Question, compare
from ringreduce.bench.report import mode_text, report

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
PYTHONS = {"GIL": Path(sys.executable), "no GIL": environment_of("freethreaded") / "bin" / "python"}


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds per size and launch")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    contestants = [
        ours_from_python(threads, python, f"{'threads' if threads else 'processes'}, {name}")
        for threads in (False, True)
        for name, python in PYTHONS.items()
    ]
    question = Question("all_reduce", options.ranks, SIZES, options.budget)
    results = compare(contestants, question, options.launches)
    print(mode_text(results.facts), "\n")
    print(report(results, question.collective, {}))


if __name__ == "__main__":
    main()
