"""All-reduces of ranks that share one GPU, as threads of one process, beside the floor and the obvious way in torch.

    python3 bench/gpu_all_reduce.py [--ranks 4] [--sizes 8K,1M,64M,256M] [--algorithms auto,ring,two_shot] [--json FILE]

Each rank captures a graph of several calls, on an array of its own, in place. All ranks launch theirs in turn with the
other contestants, in an order rotated from round to round; a time is the slowest rank's between two CUDA events, over
the number of calls; figures are medians of the rounds, with the quartiles. The floor is what must be read and written
at least, 2 N S bytes, at the rate of the better copy, CUDA's or ours, of the same run. Where torch sees the GPU: the
sum of the stacked arrays, copied to each of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from compare_peers import comma_list, parse_size

import ringreduce
from ringreduce import cuda_library
from ringreduce.cuda_library import Event, Graph, Launch, Memory, Stream, captured

LIMIT = 60.0  # seconds after which something hangs


class Array:
    """float32 in the GPU's memory."""

    def __init__(self, count: int) -> None:
        self.memory = Memory(4 * count)
        self.memory.fill(0)
        self.__cuda_array_interface__ = {
            **{"shape": (count,), "typestr": "<f4", "data": (self.memory.address, False)},
            **{"version": 3, "strides": None},
        }


@dataclass
class Contestant:
    name: str
    run: Callable[[], float]  # seconds of one all-reduce
    seconds: list[float] = field(default_factory=list)

    def quartiles(self) -> tuple[float, float, float]:
        low, median, high = statistics.quantiles(self.seconds, n=4)
        return low, median, high


class Ranks:
    """A thread for each rank. What they are told they do at the same time."""

    def __init__(self, world: int) -> None:
        self.comms = ringreduce.local_group(world, device=0, timeout=LIMIT)
        self.streams = [Stream() for _ in self.comms]

    def each(self, function: Callable[[int], float]) -> list[float]:
        results = [0.0] * len(self.comms)
        problems: list[BaseException] = []
        start = threading.Barrier(len(self.comms))

        def main(rank: int) -> None:
            try:
                start.wait(LIMIT)
                results[rank] = function(rank)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=main, args=(rank,)) for rank in range(len(self.comms))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return results

    def contestant(self, algorithm: str, count: int, calls: int) -> Contestant:
        arrays = [Array(count) for _ in self.comms]
        graphs: dict[int, Graph] = {}

        def capture(rank: int) -> float:
            comm, stream = self.comms[rank], self.streams[rank]
            handle = stream.handle.value or 0
            comm.all_reduce(arrays[rank], algorithm=algorithm, stream=handle)  # makes what there is to make
            cuda_library.synchronize(stream)
            with captured(stream) as graphs[rank]:
                for _ in range(calls):
                    comm.all_reduce(arrays[rank], algorithm=algorithm, stream=handle)
            return 0.0

        def replay(rank: int) -> float:
            begin, end = Event(), Event()
            begin.record(self.streams[rank])
            graphs[rank].launch(self.streams[rank])
            end.record(self.streams[rank])
            cuda_library.synchronize(self.streams[rank])
            seconds = begin.seconds_until(end)
            begin.close()
            end.close()
            return seconds

        self.each(capture)
        return Contestant(f"ringreduce {algorithm}", lambda: max(self.each(replay)) / calls)


def copies(size: int, stream: Stream) -> list[Contestant]:
    """Of one span: what reading and writing as many bytes takes."""
    source, target = Memory(size), Memory(size)
    source.fill(0)

    def timed(start: Callable[[], None]) -> float:
        begin, end = Event(), Event()
        begin.record(stream)
        start()
        end.record(stream)
        cuda_library.synchronize(stream)
        return begin.seconds_until(end)

    def by_kernel() -> float:
        return timed(lambda: cuda_library.copy([target.address], source.address, size, Launch(stream)))

    def by_cuda() -> float:
        return timed(lambda: cuda_library.move(target.address, source.address, size, stream))

    return [Contestant("copy kernel", by_kernel), Contestant("cudaMemcpyAsync", by_cuda)]


def naive(world: int, count: int, calls: int) -> list[Contestant]:
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    arrays = [torch.zeros(count, device="cuda") for _ in range(world)]

    def run() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            total = torch.stack(arrays).sum(0)
            for array in arrays:
                array.copy_(total)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls

    run()
    return [Contestant("torch, stacked", run)]


def measure(contestants: list[Contestant], rounds: int) -> None:
    for contestant in contestants:  # the first time loads what is needed
        contestant.run()
    for number in range(rounds):
        turn = number % len(contestants)
        for contestant in contestants[turn:] + contestants[:turn]:
            contestant.seconds.append(contestant.run())


def bandwidth(options: argparse.Namespace, stream: Stream) -> float:
    """Bytes a second that a copy reads and writes."""
    both = copies(options.copy, stream)
    measure(both, options.rounds)
    return max(2 * options.copy / one.quartiles()[1] for one in both)


def rows(size: int, floor: float, contestants: list[Contestant]) -> list[str]:
    lines = []
    for one in contestants:
        low, median, high = one.quartiles()
        lines.append(
            f"| {size:,} | {one.name} | {median * 1e6:,.1f} | {low * 1e6:,.1f} - {high * 1e6:,.1f} "
            f"| {floor / median:.1%} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--sizes",
        type=lambda text: [parse_size(one) for one in comma_list(text)],
        default=[parse_size(one) for one in ("512", "8K", "64K", "1M", "16M", "64M", "256M")],
        help="bytes of each rank's array",
    )
    parser.add_argument("--algorithms", type=comma_list, default=["auto", "one_shot", "two_shot", "ring"])
    parser.add_argument(
        "--copy", type=parse_size, default=256 << 20, help="bytes of the copy that gives the floor"
    )
    parser.add_argument("--calls", type=int, default=10, help="in each graph")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="also writes every time to this file")
    options = parser.parse_args()
    if problem := cuda_library.why_not():
        print(f"nothing measured: {problem}")
        return 1
    rate = bandwidth(options, Stream())
    ranks = Ranks(options.ranks)
    print(
        f"{cuda_library.name_of_device()}; {options.ranks} ranks, {options.rounds} rounds of {options.calls} calls"
    )
    print(f"a copy reads and writes {rate / 1e9:,.0f} GB/s\n")
    print("| bytes | | us | quartiles | of the floor |\n|--:|---|--:|--:|--:|")
    times = {}
    for size in options.sizes:
        count = max(size // 4, 1)
        contestants = [ranks.contestant(name, count, options.calls) for name in options.algorithms]
        contestants += naive(options.ranks, count, options.calls)
        measure(contestants, options.rounds)
        print("\n".join(rows(size, 2 * options.ranks * size / rate, contestants)), flush=True)
        times[size] = {one.name: one.seconds for one in contestants}
    held = np.array([comm.device_memory_held for comm in ranks.comms])
    print(f"\na rank holds {held.max() / 2**20:.1f} MiB of the GPU's memory")
    if options.json:
        options.json.write_text(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
