"""Compares a GPU's reduce kernels with its copy bandwidth.

    python3 bench/gpu/reduce.py [--bytes 1G] [--sources 2,4,8] [--dtypes float32,bfloat16] [--blocks 0] [--json FILE]

Each round launches the copies and all sums of one dtype, between two CUDA events, in an order that rotates from round
to round. Figures are medians of the rounds, with the quartiles. GB/s count the bytes that must be read and written: 2 S
for a copy, and (N + 1) S for a sum of N sources. The last column compares with the better copy of the same run, CUDA's
or ours.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from record import append

from ringreduce import _engine
from ringreduce.text import byte_count, names
from tests.gpu import cuda_library
from tests.gpu.cuda_library import Coded, Event, Launch, Memory, Stream

COPIES = ["cudaMemcpyAsync", "copy kernel"]


@dataclass
class Contestant:
    name: str
    moved: int  # bytes read and written
    start: Callable[[], None]
    seconds: list[float] = field(default_factory=list)

    def rates(self) -> tuple[float, float, float]:
        """Returns GB/s: the lower quartile, the median and the upper quartile."""
        low, median, high = statistics.quantiles([self.moved / s / 1e9 for s in self.seconds], n=4)
        return low, median, high


def contestants(options: argparse.Namespace, stream: Stream) -> list[Contestant]:
    size = options.bytes
    memories = [Memory(size) for _ in range(max(options.sources) + 1)]
    for memory in memories:
        memory.fill(0)
    to, *sources = (memory.address for memory in memories)
    launch = Launch(stream, options.blocks)
    made = [
        Contestant(COPIES[0], 2 * size, lambda: cuda_library.move(to, sources[0], size, stream)),
        Contestant(COPIES[1], 2 * size, lambda: cuda_library.copy([to], sources[0], size, launch)),
    ]
    for dtype in options.dtypes:
        count = size // _engine.reduce.size_of(dtype)
        for number in options.sources:

            def start(dtype: str = dtype, count: int = count, number: int = number) -> None:
                cuda_library.combine(dtype, options.op, [to], sources[:number], count, 0.5, launch)

            made.append(Contestant(f"{dtype}, {number} sources", (number + 1) * size, start))
    return made + coded_contestants(options, memories, launch)


def coded_contestants(
    options: argparse.Namespace, memories: list[Memory], launch: Launch
) -> list[Contestant]:
    """Returns contestants that do a hop of a ring: they combine a plain and an encoded source, keep and encode it."""
    count = options.bytes // 4
    made = []
    for wire in options.wires:
        coded = Coded(wire, "float32", "sum", sources=[1], destinations=[1])
        message = _engine.reduce.encoded_bytes(wire, count)
        to, plain, arrived = (memory.address for memory in memories[:3])
        outgoing = Memory(message)
        places = [to, outgoing.address]
        cuda_library.combine_coded(Coded(wire, "float32", "sum", destinations=[0]), [arrived], [plain], count)

        def start(
            coded: Coded = coded, places: list[int] = places, sources: tuple[int, int] = (plain, arrived)
        ) -> None:
            cuda_library.combine_coded(coded, places, sources, count, 1.0, launch)

        made.append(Contestant(f"float32 + {wire}, kept and sent on", 8 * count + 2 * message, start))
    return made


def measure(all_of_them: list[Contestant], rounds: int, stream: Stream) -> None:
    begin, end = Event(), Event()
    for contestant in all_of_them:  # the first launch loads the kernel
        contestant.start()
    cuda_library.synchronize(stream)
    for number in range(rounds):
        turn = number % len(all_of_them)
        for contestant in all_of_them[turn:] + all_of_them[:turn]:
            begin.record(stream)
            contestant.start()
            end.record(stream)
            cuda_library.synchronize(stream)
            contestant.seconds.append(begin.seconds_until(end))


def report(options: argparse.Namespace, group: list[Contestant], floor: float) -> None:
    for one in group:
        low, median, high = one.rates()
        of_copy = f"{median / floor:.1%}"
        print(f"| {one.name} | {median:,.0f} | {low:,.0f} - {high:,.0f} | {of_copy} |", flush=True)
        figures = {
            "bytes": options.bytes,
            "GB/s": round(median, 1),
            "of the copy": of_copy,
            "seconds": one.seconds,
        }
        append(options.json, figure=one.name, **figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bytes", type=byte_count, default=1 << 30, help="bytes of each span (1G)")
    parser.add_argument("--sources", type=lambda text: [int(n) for n in names(text)], default=[2, 3, 4, 6, 8])
    parser.add_argument("--dtypes", type=names, default=["float32", "bfloat16"])
    parser.add_argument("--wires", type=names, default=["int8", "fp8"])
    parser.add_argument("--op", default="sum")
    parser.add_argument(
        "--blocks", type=int, default=0, help="blocks of each launch; 0 lets the library choose"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="file that gets a line of JSON for each figure")
    options = parser.parse_args()
    if problem := cuda_library.why_not():
        print(f"nothing measured: {problem}")
        return 1
    stream = Stream()
    all_of_them = contestants(options, stream)
    print(
        f"{cuda_library.name_of_device()}; {options.bytes:,} bytes per span, {options.op}, {options.rounds} rounds\n"
    )
    print("| | GB/s | quartiles | of the copy |\n|---|--:|--:|--:|")
    copies = [one for one in all_of_them if one.name in COPIES]
    for _, group in itertools.groupby(all_of_them, lambda one: one.name.split(",")[0] * (one not in copies)):
        others = [one for one in group if one not in copies]
        for copy in copies:
            copy.seconds.clear()
        measure(copies + others, options.rounds, stream)
        report(options, others or copies, max(copy.rates()[1] for copy in copies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
