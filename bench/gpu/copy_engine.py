"""Times collectives that only copy, by copy engines and by kernels, alone and beside a matrix product.

    python3 bench/gpu/copy_engine.py [--ranks 2] [--processes] [--collectives all_gather,broadcast] [--sizes 64K,64M]
                                     [--product 8192] [--json FILE]

The ranks are threads, or processes, that share one GPU. Each rank's arrays are registered. It launches several calls on
a stream, one after the other and without a graph, which copy engines do not serve. A time is that of the slowest rank
between two CUDA events, divided by the number of calls; for small arrays it is the host's. A size is that of the whole
array. Figures are medians of the rounds, in which the contestants take turns.

The product is torch's, of two bfloat16 matrices, on another stream of rank 0. It and an all-gather of `--beside` bytes
are repeated until each would take as long alone. The last table has their times alone and together, and those of the
copies and words that a call by copy engines consists of.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from contestants import COLLECTIVES, LIMIT, arrays_of, on_threads, seconds_on
from record import append

import ringreduce
from ringreduce.text import byte_count, names, sizes
from tests.gpu import cuda_library
from tests.gpu.cuda_library import Memory, Stream

Call = Callable[[], object]


class Rank:
    """A rank's groups: one whose kernels do everything, and one that uses copy engines where it can."""

    def __init__(self, comm: Any, options: argparse.Namespace) -> None:
        self.options, self.stream = options, Stream()
        self.groups = {
            f"{options.blocks} blocks": comm.split(0, max_blocks=options.blocks),
            "copy engine": comm.split(0, max_blocks=0),
        }
        self.comm = comm

    def calls(self, collective: str, size: int) -> dict[str, Call]:
        """The contestants' calls, all of the same arrays."""
        arrays = arrays_of(self.comm, max(size // 4, self.comm.size), collective)
        made = {}
        for name, group in self.groups.items():
            for array in arrays:
                group.register(array)
            handle = self.stream.handle.value or 0
            made[name] = partial(COLLECTIVES[collective], group, *arrays, stream=handle)
        return made

    def slowest(self, seconds: float) -> float:
        return float(self.comm.all_reduce(np.array([seconds]), op="max")[0])

    def time(self, call: Call, calls: int) -> float:
        """Returns the seconds of so many calls."""

        def run() -> None:
            for _ in range(calls):
                call()

        self.comm.barrier()
        return self.slowest(seconds_on(self.stream, run))

    def say(self, line: str) -> None:
        if self.comm.rank == 0:
            print(line, flush=True)

    def report(self, what: str, size: int, us: float, **more: Any) -> None:
        if self.comm.rank == 0:
            kind = "processes" if self.options.processes else "ranks"
            figure = f"{self.comm.size} {kind}, {what}"
            append(self.options.json, figure=figure, bytes=size, us=round(us, 2), **more)


def alone(rank: Rank) -> None:
    options = rank.options
    rank.say(f"| bytes | | {' | '.join(rank.groups)} |\n|--:|---|{'--:|' * len(rank.groups)}")
    for collective in options.collectives:
        for size in options.sizes:
            contestants = rank.calls(collective, size)
            seconds: dict[str, list[float]] = {name: [] for name in contestants}
            calls = options.calls or min(max((256 << 20) // size, 5), 50)
            for number in range(options.rounds + 1):
                for name, call in contestants.items():
                    took = rank.time(call, calls) / calls
                    if number > 0:
                        seconds[name].append(took)
            medians = {name: statistics.median(all) * 1e6 for name, all in seconds.items()}
            rank.say(f"| {size:,} | {collective} | {' | '.join(f'{us:,.1f}' for us in medians.values())} |")
            for name, us in medians.items():
                rank.report(f"{collective}, {name}", size, us, seconds=seconds[name])


class Products:
    """torch's products on a stream of their own; only rank 0 has them."""

    def __init__(self, size: int) -> None:
        import torch

        self.torch, self.stream = torch, torch.cuda.Stream()
        self.a, self.b = (torch.ones(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.out = torch.empty_like(self.a)
        torch.cuda.synchronize()
        self.start(1)()  # loads its kernels, which may wait for all that runs

    def start(self, times: int) -> Callable[[], float]:
        """Launches them. What it returns waits for them, and returns their seconds."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            begin.record()
            for _ in range(times):
                self.torch.matmul(self.a, self.b, out=self.out)
            end.record()

        def wait() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return wait


def has_torch_with_a_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def beside(rank: Rank) -> None:
    options = rank.options
    products = Products(options.product) if rank.comm.rank == 0 else None

    def together(call: Call | None, calls: int, times: int) -> tuple[float, float]:
        """Returns the seconds of the products, and of the calls."""
        rank.comm.barrier()
        wait = products.start(times) if products and times else lambda: 0.0
        seconds = rank.time(call, calls) if call else 0.0
        return rank.slowest(wait()), seconds

    times = options.products
    for _ in range(2):  # until the clocks have gone up
        product = together(None, 0, times)[0]
    rank.say(f"\n{times} products of {options.product}, in ms:\n")
    rank.say("| all_gather by | calls | calls alone | products alone | calls together | products together |")
    rank.say(f"|---|{'--:|' * 5}")
    for name, call in {**rank.calls("all_gather", options.beside), **parts_of_a_call(rank)}.items():
        calls = min(max(int(product / (rank.time(call, 20) / 20)), 1), 1000)
        rounds = [
            (together(call, calls, 0)[1], together(None, 0, times)[0], *together(call, calls, times)[::-1])
            for _ in range(options.rounds)
        ]
        ms = [statistics.median(column) * 1e3 for column in zip(*rounds, strict=True)]
        rank.say(f"| {name} | {calls} | {' | '.join(f'{one:,.2f}' for one in ms)} |")
        names_of_times = ("calls alone", "products alone", "calls together", "products together")
        rank.report(
            f"all_gather beside {times} products, {name}",
            options.beside,
            ms[2] / calls * 1e3,
            calls=calls,
            **dict(zip(names_of_times, ms, strict=True)),
        )


def copies(rank: Rank, size: int) -> dict[str, Call]:
    """Ways to copy so many bytes within the GPU."""
    stream, source, target = rank.stream, Memory(size), Memory(size)
    source.fill(0)
    pointers = ctypes.c_void_p * 1
    arguments = pointers(target.address), pointers(source.address), (ctypes.c_size_t * 1)(size), 1
    return {
        "cudaMemcpyAsync": lambda: cuda_library.move(target.address, source.address, size, stream),
        "copy engine": lambda: cuda_library.call("move_all", *arguments, stream.handle),
    }


def parts_of_a_call(rank: Rank) -> dict[str, Call]:
    """What a call by copy engines launches: copies, of as many bytes here, and words."""
    word = Memory(8)
    word.fill(0)

    def on_word(step: str) -> None:
        cuda_library.call(step, ctypes.c_void_p(word.address), ctypes.c_uint64(0), rank.stream.handle)

    ways = copies(rank, rank.options.beside)
    found: dict[str, Call] = {f"nothing, a copy by {name}": copy for name, copy in ways.items()}
    return {
        **found,
        "nothing, a word written": partial(on_word, "post"),
        "nothing, a word awaited": partial(on_word, "hold"),
    }


def copy_rates(rank: Rank) -> None:
    """How fast a copy is, within the GPU, in bytes read and written."""
    size, stream = rank.options.copy, rank.stream
    for name, copy in copies(rank, size).items():
        seconds_on(stream, copy)  # type: ignore[arg-type]
        took = statistics.median(seconds_on(stream, copy) for _ in range(rank.options.rounds))  # type: ignore[arg-type]
        rank.say(f"a copy by {name} reads and writes {2 * size / took / 1e9:,.0f} GB/s")
        rank.report(f"copy by {name}", size, took * 1e6)


def work(comm: Any, options: argparse.Namespace) -> None:
    cuda_library.call("choose_device", 0)
    rank = Rank(comm, options)
    if comm.rank == 0:
        print(f"{cuda_library.name_of_device()}; {comm.size} {'processes' if options.processes else 'ranks'}")
        copy_rates(rank)
    comm.barrier()
    alone(rank)
    has = comm.all_reduce(np.array([int(has_torch_with_a_gpu() and options.product > 0)]), op="min")[0]
    if has:
        beside(rank)
    else:
        rank.say("without products: there is no torch with CUDA")
    comm.barrier()


def in_threads(options: argparse.Namespace) -> None:
    comms = ringreduce.local_group(options.ranks, timeout=LIMIT)  # which takes nothing of the GPU itself

    def main(comm: Any) -> None:
        with comm:
            work(comm, options)

    on_threads(main, comms)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--processes", action="store_true", help="instead of threads")
    parser.add_argument("--collectives", type=names, default=["all_gather", "all_to_all", "broadcast"])
    some = [byte_count(one) for one in ("64K", "1M", "16M", "64M")]
    parser.add_argument("--sizes", type=sizes, default=some, help="bytes of the whole array")
    parser.add_argument("--blocks", type=int, default=16, help="of the kernels")
    parser.add_argument("--calls", type=int, help="at a time (5 to 50)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--copy", type=byte_count, default=64 << 20, help="bytes of the copies")
    parser.add_argument("--beside", type=byte_count, default=64 << 20, help="bytes of the all-gather")
    parser.add_argument("--product", type=int, default=8192, help="rows of the matrices; 0: none")
    parser.add_argument("--products", type=int, default=20, help="at a time")
    parser.add_argument("--json", type=Path, help="file that gets a line of JSON for each figure")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    if options.processes:  # nothing of CUDA's survives a fork
        ringreduce.run(work, options.ranks, options, timeout=LIMIT)
        return 0
    if problem := cuda_library.why_not():
        print(f"nothing measured: {problem}")
        return 1
    in_threads(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
