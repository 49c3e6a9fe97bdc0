"""Times all-reduces of ranks that share one GPU, and compares them with the floor and the peers.

    python3 bench/gpu_all_reduce.py [--ranks 4] [--sizes 8K,1M,64M,256M] [--algorithms auto,ring,two_shot] [--json FILE]

Our ranks are threads of one process. Each captures a graph of several in-place calls on its own array. All ranks launch
their graphs in turn with the other contestants, in an order that rotates from round to round. A time is that of the
slowest rank between two CUDA events, divided by the number of calls. Figures are medians of the rounds, with the
quartiles. The floor is the time for the bytes that must at least be read and written, 2 N S (in a ring 5 (N - 1) S), at
the rate of the better copy of the same run, CUDA's or ours.

The peers, if they are installed, are: the sum of torch's stacked arrays, copied to each of them; torch's symmetric
memory, one-shot and two-shot, whose ranks are processes (together with our ranks as processes, because processes take
turns on a GPU without CUDA's MPS); and NCCL's all-reduce, which needs version 2.30 or later if ranks share a GPU. With
`--devices`, ranks are spread over several GPUs, and there is no floor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from gpu_contestants import (
    Contestant,
    Threads,
    Unavailable,
    copies,
    processes,
    stacked,
    threads_over_nccl,
)

import ringreduce
from ringreduce.bench.options import byte_count, names, sizes
from ringreduce.cuda import cuda_library
from ringreduce.cuda.cuda_library import Stream

SYMMETRIC = ("one_shot", "two_shot")
Maker = Callable[[int], Contestant]  # from a number of elements


def measure(contestants: list[Contestant], rounds: int) -> None:
    for contestant in contestants:  # the first run loads the kernels
        contestant.run()
    for number in range(rounds):
        turn = number % len(contestants)
        for contestant in contestants[turn:] + contestants[:turn]:
            contestant.seconds.append(contestant.run())


def bandwidth(options: argparse.Namespace, stream: Stream) -> float:
    """Returns the bytes per second that a copy reads and writes."""
    both = copies(options.copy, stream)
    measure(both, options.rounds)
    return max(2 * options.copy / one.quartiles()[1] for one in both)


def makers(options: argparse.Namespace, ranks: Threads, stack: ExitStack) -> Iterator[Maker]:
    """Yields a maker for each contestant that is available, and prints why the others are not."""
    calls = options.calls
    for name in options.algorithms:
        yield lambda count, name=name: ranks.contestant(name, count, calls)  # type: ignore[misc]
    if "stacked" in options.peers:
        yield lambda count: stacked(options.ranks, count, calls)
    try:
        if "nccl" in options.peers:
            over_nccl = threads_over_nccl(options.ranks, options.devices)
            yield lambda count: over_nccl.contestant("nccl", count, calls)
    except (Unavailable, ringreduce.Error) as why:
        print(f"without NCCL: {why}")
    for way, kinds in (("ringreduce", ("auto",)), ("symmetric", SYMMETRIC)):
        if "symmetric" not in options.peers:
            continue
        try:
            group = stack.enter_context(processes(way, options.ranks, options.devices))
        except Unavailable as why:
            print(f"without {why}")
            continue
        for kind in kinds:
            yield lambda count, group=group, kind=kind: group.contestant(kind, count, calls)  # type: ignore[misc]


def least_bytes(algorithm: str, world: int, size: int) -> int:
    """Returns the bytes that all ranks together must at least read and write in the GPU's memory."""
    return 5 * (world - 1) * size if algorithm == "ring" else 2 * world * size


def rows(size: int, options: argparse.Namespace, rate: float, contestants: list[Contestant]) -> list[str]:
    lines = []
    for one in contestants:
        low, median, high = one.quartiles()
        floor = least_bytes(one.name.split()[-1], options.ranks, size) / rate
        of_floor = f"{floor / median:.1%}" if options.devices == 1 else ""
        lines.append(
            f"| {size:,} | {one.name} | {median * 1e6:,.1f} | {low * 1e6:,.1f} - {high * 1e6:,.1f} | {of_floor} |"
        )
    return lines


def compare(options: argparse.Namespace, rate: float, all_makers: list[Maker]) -> dict[int, object]:
    """Prints the table, and returns every time by size and contestant."""
    print("| bytes | | us | quartiles | of the floor |\n|--:|---|--:|--:|--:|")
    times: dict[int, object] = {}
    for size in options.sizes:
        contestants, missing = [], []
        for make in all_makers:
            try:
                contestants.append(make(max(size // 4, 1)))
            except (Unavailable, ringreduce.Error) as why:
                missing.append(str(why))
        measure(contestants, options.rounds)
        print("\n".join(rows(size, options, rate, contestants)), flush=True)
        for why in missing:
            print(f"{size:,}: without {why}", file=sys.stderr)
        times[size] = {one.name: one.seconds for one in contestants}
        for contestant in contestants:
            contestant.close()
    return times


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--devices", type=int, default=1, help="number of GPUs that the ranks are spread over (1)"
    )
    parser.add_argument(
        "--sizes",
        type=sizes,
        default=[byte_count(one) for one in ("512", "8K", "64K", "1M", "16M", "64M", "256M")],
        help="bytes of each rank's array",
    )
    parser.add_argument("--algorithms", type=names, default=["auto", "one_shot", "two_shot", "ring"])
    parser.add_argument(
        "--peers",
        type=names,
        default=["stacked", "nccl", "symmetric"],
        help="some of stacked, nccl, symmetric",
    )
    parser.add_argument(
        "--copy", type=byte_count, default=256 << 20, help="bytes of the copy that determines the floor"
    )
    parser.add_argument("--calls", type=int, default=10, help="calls in each graph (10)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="file for every time measured")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    if problem := cuda_library.why_not():
        print(f"nothing measured: {problem}")
        return 1
    print(
        f"{cuda_library.name_of_device()}; {options.ranks} ranks, {options.rounds} rounds of {options.calls} calls"
    )
    rate = bandwidth(options, Stream())
    with ExitStack() as stack:
        begin = time.monotonic()
        ranks = Threads(options.ranks, options.devices)
        creation = time.monotonic() - begin
        all_makers = list(makers(options, ranks, stack))
        print(f"a copy reads and writes {rate / 1e9:,.0f} GB/s\n")
        times = compare(options, rate, all_makers)
    held = np.array([comm.device_memory_held for comm in ranks.comms])
    print(
        f"\na rank holds {held.max() / 2**20:.1f} MiB of the GPU's memory; the group met in {creation * 1e3:,.0f} ms"
    )
    if options.json:
        options.json.write_text(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
