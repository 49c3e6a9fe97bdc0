"""Times the ranks' kernels, one_shot, two_shot and direct, by size and number of thread blocks.

    python3 bench/gpu/kernels.py [--ranks 2,4] [--sizes 512,4M] [--kernels one_shot,direct] [--blocks 16] [--emulated]
                                 [--collective all_reduce|all_gather|reduce_scatter]

The ranks are streams of one process. Each replays a graph of several calls on its own array, and a time is that of the
last rank between two CUDA events. This shows from which size on which kernel is faster, and how many blocks it wants.
Sizes are those of a rank's block, or of the array in an all-reduce. Only an all-reduce has two shots.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from record import append

from ringreduce.text import byte_count, names, sizes
from tests.gpu import cuda_library
from tests.gpu.ranks import DoesNotFit, Part, Ranks, emulated_library
from tests.gpu.test_ranks import errands, flagged, parts


def launched(ranks: Ranks, collective: str, kernel: str, count: int, spans: list[Any]) -> list[Any]:
    block, gathers = 4 * count, collective == "all_gather"
    if collective == "all_reduce":
        of = parts(kernel, ranks.world, count, 4)
    elif kernel != "direct":
        return list(flagged(ranks, collective, spans, block))
    else:
        of = [Part(r * block, r * block, block, not gathers, gathers) for r in range(ranks.world)]
    return list(errands(ranks, "sum", spans, spans, of))


def graphs_of(ranks: Ranks, kernel: str, calls: int, errands: list[Any]) -> list[Any]:
    made = []
    for rank, errand in zip(ranks.ranks, errands, strict=True):
        rank.choose()
        with ranks.library.captured(rank.stream) as graph:
            ranks.launch(kernel, [errand] * calls)
        made.append(graph)
    return made


def replay(ranks: Ranks, graphs: list[Any]) -> float:
    """Returns the seconds of the slowest rank."""
    events = []
    for rank, graph in zip(ranks.ranks, graphs, strict=True):
        rank.choose()
        begin, end = ranks.library.Event(), ranks.library.Event()
        events.append((begin, end))
        begin.record(rank.stream)
        graph.launch(rank.stream)
        end.record(rank.stream)
    ranks.finish()
    seconds = max(begin.seconds_until(end) for begin, end in events)
    for both in events:
        for event in both:
            event.close()
    return float(seconds)


def measure(
    options: argparse.Namespace, library: Any, world: int, kernel: str, blocks: int, size: int
) -> list[float]:
    ranks = Ranks(library, world, blocks=blocks)
    count = max(size // 4, 1)
    blocks_of_all = 1 if options.collective == "all_reduce" else world
    spans = ranks.spans([np.zeros(count * blocks_of_all, "float32")] * world)
    made = launched(ranks, options.collective, kernel, count, spans)
    graphs = graphs_of(ranks, kernel, options.calls, made)
    replay(ranks, graphs)
    seconds = [replay(ranks, graphs) / options.calls for _ in range(options.rounds)]
    for one in (*graphs, *spans, ranks):
        one.close()
    return seconds


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[4])
    parser.add_argument("--sizes", type=sizes, default=[512 << (2 * power) for power in range(7)] + [4 << 20])
    parser.add_argument(
        "--collective", choices=["all_reduce", "all_gather", "reduce_scatter"], default="all_reduce"
    )
    parser.add_argument("--kernels", type=names, default=["one_shot", "two_shot", "direct"])
    parser.add_argument(
        "--one-shot-up-to", type=byte_count, default=1 << 20, help="larger ones take long (1M)"
    )
    parser.add_argument("--blocks", type=numbers, default=[16])
    parser.add_argument("--calls", type=int, default=100, help="calls in each graph (100)")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="no further size after so many (120)")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--json", type=Path, help="file for a line of JSON for each figure")
    options = parser.parse_args()
    library = emulated_library() if options.emulated else cuda_library
    end = time.monotonic() + options.seconds
    print("| ranks | bytes | kernel | blocks | us | quartiles |\n|--:|--:|---|--:|--:|--:|", flush=True)
    for world, size, kernel, blocks in itertools.product(
        options.ranks, options.sizes, options.kernels, options.blocks
    ):
        if time.monotonic() > end or (kernel == "one_shot" and size > options.one_shot_up_to):
            continue
        if kernel == "two_shot" and options.collective != "all_reduce":
            continue
        try:
            seconds = measure(options, library, world, kernel, blocks, size)
        except DoesNotFit as problem:
            print(f"without {blocks} blocks: {problem}", file=sys.stderr)
            continue
        low, median, high = (1e6 * one for one in statistics.quantiles(seconds, n=4))
        print(
            f"| {world} | {size:,} | {kernel} | {blocks} | {median:,.1f} | {low:,.1f} - {high:,.1f} |",
            flush=True,
        )
        name = f"{options.collective}, {world} ranks, {kernel}, {blocks} blocks"
        append(options.json, figure=name, bytes=size, us=round(median, 2), quartiles=[low, high])
    return 0


if __name__ == "__main__":
    sys.exit(main())
