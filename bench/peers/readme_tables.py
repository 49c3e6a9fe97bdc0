"""Measures the tables of README and writes them into it.

    make bench-tables                                  # builds the contestants and installs the peers first
    python3 -m bench.peers.readme_tables --ranks 2 --launches 5

Each table shows all-reduces, called from C++, of ringreduce, the MPIs and Gloo. The line below it says when and in
which mode of the machine it was measured.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from datetime import date
from pathlib import Path

from bench.peers.contestants import ROOT, all_contestants
from ringreduce.bench.programs import Question, compare
from ringreduce.bench.report import exchanges
from ringreduce.bench.results import Results
from ringreduce.text import human_bytes, human_us, markdown, sizes

COLUMNS = {
    "ringreduce": "ringreduce",
    "ringreduce-shared": "with `ringreduce.empty`",
    "openmpi": "Open MPI 5",
    "mpich": "MPICH 5",
    "impi": "Intel MPI",
    "gloo": "Gloo",
    "floor": "floor",
}
SIZES = (4, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20)
FEWER_SIZES = (4, 8 << 10, 512 << 10, 4 << 20, 32 << 20)  # for more than two ranks
SECONDS = 0.5  # for one size, contestant and launch


def sizes_for(ranks: int) -> tuple[int, ...]:
    return SIZES if ranks == 2 else FEWER_SIZES


def table(results: Results, ranks: int, launches: int) -> str:
    """Returns a row for each size, and how they were measured."""
    measured = results.names(collective="all_reduce")
    names = [name for name in COLUMNS if name in measured]
    rows = [[f"{ranks} ranks, microseconds", *(COLUMNS[name] for name in names)]]
    for nbytes in sizes_for(ranks):
        times = (results.us("all_reduce", nbytes, name) for name in names)
        rows.append([human_bytes(nbytes), *map(human_us, times)])
    facts = results.facts
    how = f"Medians of {launches} launches on {date.today()}, {facts['cpu']}, {facts['cores']} cores."
    return f"{markdown(rows)}\n\n{how} One exchange between two cores took {exchanges(facts)}.\n"


def write(readme: Path, ranks: int, text: str) -> None:
    """Replaces the table for a number of ranks.

    Raises:
        SystemExit: README has no place for it.
    """
    begin, end = f"<!-- all-reduce on {ranks} ranks -->", "<!-- end of table -->"
    place = re.compile(f"(?<={begin}\n\n).*?(?=\n{end})", re.DOTALL)
    new, count = place.subn(lambda _: text, readme.read_text())
    if count != 1:
        raise SystemExit(f"{readme} must have one table between {begin} and {end}, not {count}")
    readme.write_text(new)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=sizes, default=[2, 4])
    parser.add_argument("--launches", type=int, default=3)
    options = parser.parse_args()
    everybody = all_contestants()
    contestants = [everybody[name] for name in COLUMNS]
    for ranks in options.ranks:
        results = compare(
            contestants, Question("all_reduce", ranks, sizes_for(ranks), SECONDS), options.launches
        )
        text = table(results, ranks, options.launches)
        print("\n".join([text, *results.notes]), flush=True)
        write(ROOT / "README.md", ranks, text)


if __name__ == "__main__":
    main()
