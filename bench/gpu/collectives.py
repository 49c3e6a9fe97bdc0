"""Times collectives of ranks that share one GPU, and compares them with the floor and the peers.

    python3 bench/gpu/collectives.py [--collectives all_reduce,broadcast] [--ranks 4] [--sizes 8K,1M,64M,256M]
                                     [--algorithms auto,ring,two_shot,auto+int8] [--json FILE]

Our ranks are threads of one process. Each captures a graph of several calls on its own arrays, in place if it can. All
ranks launch their graphs in turn with the other contestants, in an order that rotates from round to round. A time is
that of the slowest rank between two CUDA events, divided by the number of calls. It includes the time until the last
rank has launched its graph, so small arrays have graphs of more calls. Figures are medians of the rounds, with the
quartiles. The floor is the time for the bytes that must at least be read and written, in an all-reduce 2 N S (in a ring
5 (N - 1) S), at the rate of the better copy of the same run, CUDA's or ours.

The peers of an all-reduce, if they are installed, are: the sum of torch's stacked arrays, copied to each of them;
NCCL's all-reduce, which needs version 2.30 or later if ranks share a GPU; and torch's symmetric memory, one-shot and
two-shot, whose ranks are processes. Processes take turns on a GPU without CUDA's MPS, which may take very long. So they
come last, together with our ranks as processes, and for `--process-seconds` at most. With `--devices`, ranks are spread
over several GPUs, and there is no floor. Each figure is printed, and written to `--json`, as soon as it is known.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from contestants import (
    COLLECTIVES,
    Contestant,
    Threads,
    Unavailable,
    copies,
    processes,
    stacked,
    threads_over_nccl,
)
from record import append

import ringreduce
from ringreduce.text import byte_count, names, sizes
from tests.gpu import cuda_library
from tests.gpu.cuda_library import Stream

SYMMETRIC = ("one_shot", "two_shot")
Maker = Callable[[int], Contestant]  # from a number of elements


def measure(contestants: list[Contestant], rounds: int) -> None:
    """Runs them in turn. One that becomes unavailable has no times."""
    left = list(contestants)
    for number in range(rounds + 1):
        turn = number % max(len(left), 1)
        for contestant in left[turn:] + left[:turn]:
            try:
                seconds = contestant.run()
            except Unavailable as why:
                print(f"without {contestant.name} from now on: {why}", file=sys.stderr)
                left.remove(contestant)
                contestant.seconds.clear()
                continue
            if number > 0:  # the first run loads the kernels
                contestant.seconds.append(seconds)


def bandwidth(options: argparse.Namespace, stream: Stream) -> float:
    """Returns the bytes per second that a copy reads and writes."""
    both = copies(options.copy, stream)
    measure(both, options.rounds)
    return max(2 * options.copy / one.quartiles()[1] for one in both)


def calls_of(options: argparse.Namespace, count: int) -> int:
    """Returns the number of calls in a graph, for arrays of so many elements."""
    return options.calls or min(max((1600 << 20) // (4 * count), 10), 100)


def of_threads(options: argparse.Namespace, ranks: Threads) -> Iterator[Maker]:
    """Yields a maker for each contestant that runs in this process."""
    for name in options.algorithms:
        yield lambda count, name=name: ranks.contestant(  # type: ignore[misc]
            name, count, calls_of(options, count), options.collective
        )
    if "stacked" in options.peers and options.collective == "all_reduce":
        yield lambda count: stacked(options.ranks, count, calls_of(options, count))


def of_nccl(options: argparse.Namespace) -> Iterator[Maker]:
    if "nccl" in options.peers:
        over_nccl = threads_over_nccl(options.ranks, options.devices)
        yield lambda count: over_nccl.contestant("nccl", count, calls_of(options, count))


def of_processes(options: argparse.Namespace, stack: ExitStack) -> Iterator[Maker]:
    """Yields a maker for each contestant whose ranks are processes, and prints why the others are not there."""
    end = time.monotonic() + options.process_seconds
    for way, kinds in (("ringreduce", ("auto",)), ("symmetric", SYMMETRIC)):
        try:
            group = stack.enter_context(processes(way, options.ranks, options.devices, end))
        except Unavailable as why:
            print(f"without {why}")
            continue
        for kind in kinds:
            yield lambda count, group=group, kind=kind: group.contestant(
                kind, count, calls_of(options, count)
            )  # type: ignore[misc]


def least_bytes(collective: str, algorithm: str, world: int, size: int) -> int:
    """Returns the bytes that all ranks together must at least read and write in the GPU's memory."""
    if (collective, algorithm) == ("all_reduce", "ring"):
        return 5 * (world - 1) * size
    exchanged = dict.fromkeys(("all_reduce", "all_to_all", "uneven_all_to_all"), 2 * world)
    arrays = {**exchanged, "broadcast": world, "gather": 2, "scatter": 2}
    return arrays.get(collective, world + 1) * size


def report(size: int, options: argparse.Namespace, rate: float, contestants: list[Contestant]) -> None:
    for one in contestants:
        if len(one.seconds) < 2:
            continue
        low, median, high = one.quartiles()
        floor = least_bytes(options.collective, one.name.split()[-1], options.ranks, size) / rate
        of_floor = f"{floor / median:.1%}" if options.devices == 1 else ""
        quartiles = f"{low * 1e6:,.1f} - {high * 1e6:,.1f}"
        print(f"| {size:,} | {one.name} | {median * 1e6:,.1f} | {quartiles} | {of_floor} |", flush=True)
        figures = {
            "bytes": size,
            "us": round(median * 1e6, 2),
            "of the floor": of_floor,
            "seconds": one.seconds,
        }
        what = "" if options.collective == "all_reduce" else f"{options.collective}, "
        append(options.json, figure=f"{options.ranks} ranks, {what}{one.name}", **figures)


def compare(options: argparse.Namespace, rate: float, makers: Iterable[Maker]) -> None:
    """Measures some contestants in turn, one size after the other."""
    all_makers = list(makers)
    for size in options.sizes if all_makers else []:
        contestants: list[Contestant] = []
        try:
            for make in all_makers:
                try:
                    contestants.append(make(max(size // 4, 1)))
                except (Unavailable, ringreduce.Error) as why:
                    print(f"{size:,}: without {why}", file=sys.stderr)
            if not contestants:  # processes whose time is up
                break
            measure(contestants, options.rounds)
            report(size, options, rate, contestants)
        finally:
            for contestant in contestants:
                contestant.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--collectives", type=names, default=["all_reduce"], help="of: " + ", ".join(COLLECTIVES)
    )
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
    parser.add_argument("--calls", type=int, help="calls in each graph (100 up to 16 MiB, fewer above)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--process-seconds", type=float, default=120.0, help="for ranks that are processes (120)"
    )
    parser.add_argument("--json", type=Path, help="file that gets a line of JSON for each figure")
    options = parser.parse_args()
    for name in options.collectives:
        if name not in COLLECTIVES:
            parser.error(f"--collectives must be of {', '.join(COLLECTIVES)}, not {name!r}")
    return options


def main() -> int:
    options = parse_arguments()
    if problem := cuda_library.why_not():
        print(f"nothing measured: {problem}")
        return 1
    print(f"{cuda_library.name_of_device()}; {options.ranks} ranks, {options.rounds} rounds")
    rate = bandwidth(options, Stream())
    print(f"a copy reads and writes {rate / 1e9:,.0f} GB/s")
    append(options.json, figure="copy", **{"bytes": options.copy, "GB/s": round(rate / 1e9, 1)})
    begin = time.monotonic()
    ranks = Threads(options.ranks, options.devices)
    print(f"the group met in {(time.monotonic() - begin) * 1e3:,.0f} ms\n")
    for collective in options.collectives:
        options.collective = collective
        print(
            f"{collective}:\n\n| bytes | | us | quartiles | of the floor |\n|--:|---|--:|--:|--:|", flush=True
        )
        compare(options, rate, of_threads(options, ranks))
        print()
    held = np.array([comm.device_memory_held for comm in ranks.comms])
    options.collective = "all_reduce"  # what other contestants have
    try:
        compare(options, rate, of_nccl(options))
    except (Unavailable, ringreduce.Error) as why:
        print(f"without NCCL: {why}")
    if "symmetric" in options.peers:  # and our own
        with ExitStack() as stack:
            try:
                compare(options, rate, of_processes(options, stack))
            except Unavailable as why:
                print(f"no more processes: {why}")
    print(f"\na rank holds {held.max() / 2**20:.1f} MiB of the GPU's memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
