"""The big table: every contestant at 2, 4 and 8 ranks, from 4 B to 32 MiB.

    python3 bench/compare_peers.py --quick
    python3 bench/compare_peers.py --ranks 2 --only ringreduce,impi,floor --collectives all_reduce

`make bench-peers` installs the peers first.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from contestants import CORES, MPIS, TUNED, all_contestants
from harness import ROOT, Contestant, Question, as_json, merge, run_all
from report import report, write_json

SIZES = [4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20]
LARGE = 256 << 20
QUICK_SIZES = [4, 8 << 10, 512 << 10, 4 << 20]


def comma_list(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def parse_size(text: str) -> int:
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1].upper()] if text[-1].upper() in units else int(text)


def parse_arguments() -> Namespace:
    known = list(all_contestants())
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in comma_list(text)], default=[2, 4, 8])
    parser.add_argument(
        "--sizes", type=lambda text: [parse_size(s) for s in comma_list(text)], help="4,8K,4M"
    )
    parser.add_argument(
        "--collectives", type=comma_list, default=["all_reduce"], help="comma-separated, or all"
    )
    parser.add_argument("--only", type=comma_list, help=f"of {', '.join(known)}")
    parser.add_argument("--without", type=comma_list, default=[])
    parser.add_argument(
        "--tuned", action="store_true", help="the MPIs also with glibc told to keep their memory"
    )
    parser.add_argument(
        "--reference", help="one contestant, instead of the best peer, the best MPI and the floor"
    )
    parser.add_argument("--launches", type=int, help="of every contestant; 3, with --quick 1")
    parser.add_argument("--budget", type=float, help="seconds per size; 0.5, with --quick 0.1")
    parser.add_argument("--timeout", type=float, help="seconds for one launch of one contestant")
    parser.add_argument("--large", action="store_true", help="256 MiB too")
    parser.add_argument("--quick", action="store_true", help="few sizes, one short launch")
    options = parser.parse_args()
    options.only = options.only or [name for name in known if options.tuned or name not in TUNED]
    strangers = [name for name in [*options.only, *options.without] if name not in known]
    if strangers:
        parser.error(f"no contestant is called {', '.join(strangers)}")
    if options.collectives == ["all"]:
        options.collectives = ["all_reduce", "reduce_scatter", "all_gather"]
    options.sizes = options.sizes or list(QUICK_SIZES if options.quick else SIZES)
    options.sizes += [LARGE] if options.large else []
    options.launches = options.launches or (1 if options.quick else 3)
    options.budget = options.budget or (0.1 if options.quick else 0.5)
    return options


def references(contestants: list[Contestant], chosen: str | None) -> dict[str, list[str]]:
    if chosen:
        return {chosen: [chosen]}
    peers = [contestant.name for contestant in contestants if contestant.kind == "peer"]
    return {
        "best peer": peers,
        "best MPI in C": list(MPIS),
        "best tuned MPI": list(TUNED),
        "floor": ["floor"],
    }


def question_for(collective: str, ranks: int, options: Namespace) -> Question:
    # A block of a reduce-scatter or an all-gather is at least one element.
    smallest = 4 if collective == "all_reduce" else 4 * ranks
    return Question(collective, ranks, tuple(s for s in options.sizes if s >= smallest), options.budget)


def default_timeout(question: Question, cores: int) -> float:
    """Generous: the slowest known need a scheduler tick a call, and 256 MiB takes seconds to rewrite."""
    crowding = max(1.0, question.ranks / cores)
    return 30 + sum(4 * question.budget + 25 * crowding * size / LARGE for size in question.sizes)


def main() -> None:
    options = parse_arguments()
    wanted = [name for name in options.only if name not in options.without]
    everybody = all_contestants()
    contestants = [everybody[name] for name in wanted]
    tables = []
    for collective in options.collectives:
        for ranks in options.ranks:
            question = question_for(collective, ranks, options)
            timeout = options.timeout or default_timeout(question, CORES)
            runs = run_all(contestants, question, options.launches, timeout)
            cells = merge(runs, question)
            print(
                report(question, runs, cells, references(contestants, options.reference)),
                end="\n\n",
                flush=True,
            )
            tables.append(as_json(question, runs, cells))
    print(f"Every run is in {write_json('compare_peers', tables).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
