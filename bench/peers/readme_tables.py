"""Measures the tables of README and writes them into it.

    make bench-tables                                  # builds the contestants and installs the peers first
    python3 -m bench.peers.readme_tables --ranks 2 --launches 5

A table shows all-reduces, called from C++, of ringreduce, the MPIs and Gloo, or the other collectives relative to the
fastest MPI. The line below it says when and in which mode of the machine it was measured.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from datetime import date
from pathlib import Path

from bench.peers.compare_peers import question_for
from bench.peers.contestants import MPIS, ROOT, all_contestants
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
OTHERS = (
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "scan",
    "exscan",
    "barrier",
)
SIZES_OF_OTHERS = (8, 4 << 10, 64 << 10, 512 << 10, 4 << 20)
SECONDS_OF_OTHERS = 0.12
SPINNING = "mpich"  # its ranks hold a core while they wait, for milliseconds if others need it


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


def ratio_text(results: Results, collective: str, nbytes: int) -> str:
    """Returns our time relative to the fastest MPI's. * marks a pair that was measured in two modes."""
    fastest = results.fastest(collective, nbytes, MPIS)
    ours = results.us(collective, nbytes, "ringreduce")
    theirs = fastest and results.us(collective, nbytes, fastest)
    if not ours or not theirs:
        return ""
    rows = (results.row(collective, nbytes, name) for name in ("ringreduce", fastest))
    return f"{ours / theirs:.2f}" + "*" * any(row["other_mode"] for row in rows if row)


def table_of_others(found: list[Results], ranks: int, launches: int) -> str:
    """Returns a row for each collective, with times relative to the fastest MPI's."""
    rows = [[f"{ranks} ranks, x the fastest MPI", *map(human_bytes, SIZES_OF_OTHERS)]]
    for results in found:
        (collective,) = results.collectives()
        ratios = [ratio_text(results, collective, nbytes) for nbytes in results.sizes(collective)]
        rows.append([collective, *ratios, *[""] * (len(SIZES_OF_OTHERS) - len(ratios))])
    facts = found[0].facts
    modes = Counter(results.facts["mode"] for results in found)
    told = " and ".join(f"{mode} for {count} of them" for mode, count in modes.items())
    how = f"Medians of {launches} launches on {date.today()}, {facts['cpu']}, {facts['cores']} cores."
    return f"{markdown(rows)}\n\n{how} The cores were {told}.\n"


def write(readme: Path, name: str, text: str) -> None:
    """Replaces the table of a name.

    Raises:
        SystemExit: README has no place for it.
    """
    begin, end = f"<!-- {name} -->", "<!-- end of table -->"
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
        question = Question("all_reduce", ranks, sizes_for(ranks), SECONDS)
        results = compare(contestants, question, options.launches)
        text = table(results, ranks, options.launches)
        print("\n".join([text, *results.notes]), flush=True)
        write(ROOT / "README.md", f"all-reduce on {ranks} ranks", text)
        others = Namespace(sizes=SIZES_OF_OTHERS, budget=SECONDS_OF_OTHERS)
        mpis = [name for name in MPIS if ranks <= 2 or name != SPINNING]
        found = [
            compare(
                [everybody[name] for name in ("ringreduce", *mpis)],
                question_for(collective, ranks, others),
                options.launches,
            )
            for collective in OTHERS
        ]
        text = table_of_others(found, ranks, options.launches)
        print(text, flush=True)
        write(ROOT / "README.md", f"other collectives on {ranks} ranks", text)


if __name__ == "__main__":
    main()
