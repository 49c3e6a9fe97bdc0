"""Prints the large table: every contestant on 2, 4 and 8 ranks, from 4 B to 32 MiB.

    python3 -m bench.peers.compare_peers --quick
    python3 -m bench.peers.compare_peers --quick --collectives all_to_all,gather_v,barrier
    python3 -m bench.peers.compare_peers --ranks 2 --only ringreduce,impi,floor --collectives all_reduce

`make bench-peers` installs the peers first. gather_v and so on are gathers of blocks of different lengths. All calls
are in place, except all_to_all and all_to_all_v.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.peers.contestants import MPIS, TUNED, all_contestants
from ringreduce.bench.problem import BLOCKWISE, FACTS, UNEVEN
from ringreduce.bench.programs import Contestant, Question, compare
from ringreduce.bench.report import mode_text, report
from ringreduce.bench.results import as_dict, save
from ringreduce.text import names, sizes

SIZES = [4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20]
LARGE = 256 << 20
QUICK_SIZES = [4, 8 << 10, 512 << 10, 4 << 20]


def parse_arguments() -> Namespace:
    known = list(all_contestants())
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=sizes, default=[2, 4, 8])
    parser.add_argument("--sizes", type=sizes, help="4,8K,4M")
    parser.add_argument("--collectives", type=names, default=["all_reduce"], help="comma-separated, or all")
    parser.add_argument("--only", type=names, help=f"contestants to measure: {', '.join(known)}")
    parser.add_argument("--without", type=names, default=[], help="contestants to leave out")
    parser.add_argument(
        "--tuned",
        action="store_true",
        help="also measure the MPIs with glibc settings that keep their memory",
    )
    parser.add_argument(
        "--reference",
        help="a contestant to compare with, instead of the best peer, the best MPI and the floor",
    )
    parser.add_argument("--launches", type=int, help="launches of every contestant (3, with --quick 1)")
    parser.add_argument("--budget", type=float, help="seconds per size (0.5, with --quick 0.1)")
    parser.add_argument("--timeout", type=float, help="seconds for one launch of one contestant")
    parser.add_argument("--large", action="store_true", help="also measure 256 MiB")
    parser.add_argument("--quick", action="store_true", help="few sizes, one short launch")
    options = parser.parse_args()
    options.only = options.only or [name for name in known if options.tuned or name not in TUNED]
    strangers = [name for name in [*options.only, *options.without] if name not in known]
    if strangers:
        parser.error(f"no contestant is called {', '.join(strangers)}")
    if options.collectives == ["all"]:
        options.collectives = [*FACTS, *UNEVEN]
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
    if collective == "barrier":
        return Question(collective, ranks, (0,), options.budget)
    smallest = 4 * ranks if collective in BLOCKWISE else 4  # a block has at least one element
    sizes = dict.fromkeys(max(smallest, nbytes) for nbytes in options.sizes)
    return Question(collective, ranks, tuple(sizes), options.budget)


def main() -> None:
    options = parse_arguments()
    wanted = [name for name in options.only if name not in options.without]
    everybody = all_contestants()
    contestants = [everybody[name] for name in wanted]
    tables = []
    for collective in options.collectives:
        for ranks in options.ranks:
            question = question_for(collective, ranks, options)
            some = [one for one in contestants if one.kind != "floor" or collective != "barrier"]
            results = compare(some, question, options.launches, options.timeout)
            print(f"{collective}, float32 sum, {ranks} ranks. {mode_text(results.facts)}\n")
            text = report(results, collective, references(contestants, options.reference))
            print(text, end="\n\n", flush=True)
            tables.append(as_dict(results))
    print(f"All figures are in {save(Path(__file__).parents[1] / 'results', 'compare_peers', tables)}")


if __name__ == "__main__":
    main()
