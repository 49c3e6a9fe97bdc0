"""How long a message takes from one rank to another: half of a round trip, from Python, beside Gloo.

    python3 bench/point_to_point.py
    python3 bench/point_to_point.py --sizes 8,1M --checkout ../older    # beside another version, built there

Each of two ranks sends what it has just written, and receives into another buffer. Ours is timed with ordinary
memory, with arrays of ringreduce.empty, and in the background (a Work for every call).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

BENCH = Path(__file__).resolve().parent
SIZES = [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20]
BATCH_BYTES, MAX_BATCH = 256 << 10, 100
WARMUP, LEAST, MOST = 8, 7, 300


class Ends(NamedTuple):
    """A library's ways from and to the other rank."""

    rank: int
    send: Callable[[Any], Any]
    recv: Callable[[Any], Any]
    barrier: Callable[[], Any]
    allocate: Callable[[int], Any]
    wrap: Callable[[Any], Any]
    """What send and recv take, made of a NumPy array."""


def ringreduce_ends(comm: Any, variant: str) -> Ends:
    import ringreduce

    other, background = 1 - comm.rank, variant == "background"
    allocate = ringreduce.empty if variant == "shared" else np.empty

    def send(x: Any) -> None:
        if background:
            comm.send(x, other, async_op=True).wait()
        else:
            comm.send(x, other)

    def recv(x: Any) -> None:
        if background:
            comm.recv(x, other, async_op=True).wait()
        else:
            comm.recv(x, other)

    return Ends(comm.rank, send, recv, comm.barrier, lambda n: allocate(n, "uint8"), lambda x: x)


def gloo_ends(rank: int) -> Ends:
    import torch
    import torch.distributed as dist

    other = 1 - rank
    return Ends(
        rank,
        lambda x: dist.send(x, other),
        lambda x: dist.recv(x, other),
        dist.barrier,
        lambda n: np.empty(n, "uint8"),
        torch.from_numpy,
    )


def sample(ends: Ends, mine: list[Any], theirs: list[Any], batch: int, iteration: int) -> float:
    """Seconds of one message: half of a round trip."""
    for x in mine[:batch]:
        x[:] = (ends.rank + 2 * iteration) % 251
    wrapped = [(ends.wrap(x), ends.wrap(y)) for x, y in zip(mine[:batch], theirs[:batch], strict=True)]
    ends.barrier()
    start = perf_counter()
    for x, y in wrapped:
        if ends.rank == 0:
            ends.send(x)
            ends.recv(y)
        else:
            ends.recv(y)
            ends.send(x)
    return (perf_counter() - start) / batch / 2


def measure(ends: Ends, nbytes: int, budget: float) -> dict[str, Any]:
    """Both ranks call it; rank 0's figures count."""
    most = max(1, min(MAX_BATCH, BATCH_BYTES // nbytes))
    mine, theirs = ([ends.allocate(nbytes) for _ in range(most)] for _ in range(2))
    warm = min(sample(ends, mine, theirs, 1, i) for i in range(WARMUP))
    plan = np.array([most, max(LEAST, min(MOST, int(budget / 4 / (warm * most))))], "int64")
    (ends.recv if ends.rank else ends.send)(ends.wrap(plan))
    batch, iterations = plan.tolist()
    times = [sample(ends, mine, theirs, batch, i) for i in range(iterations)]
    p25, median, p75 = (1e6 * q for q in quantiles(times, n=4))
    expected = (1 - ends.rank + 2 * (iterations - 1)) % 251
    wrong = sum(int(np.count_nonzero(y != expected)) for y in theirs[:batch])
    return {
        "median_us": round(median, 4), "p25_us": round(p25, 4), "p75_us": round(p75, 4),
        "iterations": iterations, "batch": batch, "wrong": wrong,
    }  # fmt: skip


def measure_sizes(ends: Ends, options: Namespace) -> None:
    for nbytes in options.sizes:
        figures = measure(ends, nbytes, options.budget)
        if ends.rank == 0:
            about = {"library": options.library, "collective": "send", "ranks": 2, "bytes": nbytes}
            print(json.dumps({**about, **figures}), flush=True)


def ringreduce_rank(comm: Any, options: Namespace) -> None:
    measure_sizes(ringreduce_ends(comm, options.variant), options)


def gloo_rank(rank: int, options: Namespace, store: str) -> None:
    sys.path.append(str(BENCH.parent / "ringreduce" / "bench"))
    import gloo
    import torch.distributed as dist

    gloo.join(rank, 2, store)
    measure_sizes(gloo_ends(rank), options)
    dist.destroy_process_group()


def run_contestant(options: Namespace) -> None:
    if options.variant != "gloo":
        import ringreduce

        ringreduce.run(ringreduce_rank, 2, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=gloo_rank, args=(rank, options, f"{folder}/store"), daemon=True)
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


def compare(options: Namespace) -> None:
    from harness import ROOT, Contestant, Question, as_json, merge, run_all
    from report import mode_text, ratio_table, time_table, write_json

    def contestant(name: str, variant: str, root: Path) -> Contestant:
        command = [sys.executable, str(BENCH / "point_to_point.py"), "--variant", variant]
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"}
        return Contestant(
            name,
            lambda question: [*command, *question.options(name)],
            lambda question: environment,
            kind="peer" if variant == "gloo" else "ours",
        )

    contestants = []
    for root in [ROOT, *options.checkout]:
        name = "ringreduce" if root == ROOT else root.resolve().name
        contestants.append(contestant(name, "ordinary", root))
        contestants.append(contestant(f"{name}-shared", "shared", root))
        contestants.append(contestant(f"{name}-background", "background", root))
    contestants.append(contestant("gloo", "gloo", ROOT))
    question = Question("send", 2, tuple(options.sizes), options.budget)
    runs = run_all(contestants, question, options.launches, options.timeout)
    cells = merge(runs, question)
    print(f"One message between two ranks. {mode_text(runs)}")
    print(time_table(cells, question), ratio_table(cells, question, "gloo", ["gloo"]), sep="\n\n")
    if options.save:
        print(write_json("point_to_point", [as_json(question, runs, cells)]).relative_to(ROOT))


def sizes(text: str) -> list[int]:
    units = {"K": 10, "M": 20}
    return [int(s[:-1]) << units[s[-1]] if s[-1] in units else int(s) for s in text.split(",")]


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=sizes, default=SIZES, help="8,1K,4M")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per size")
    parser.add_argument("--launches", type=int, default=3, help="of every contestant")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one launch of one contestant")
    parser.add_argument("--checkout", type=Path, nargs="*", default=[], help="other versions of this library")
    parser.add_argument("--save", action="store_true", help="all figures, in bench/results")
    # What the harness says to a contestant.
    parser.add_argument("--variant", choices=["ordinary", "shared", "background", "gloo"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--collective", default="send")
    parser.add_argument("--library", default="")
    options = parser.parse_args()
    if options.variant:
        run_contestant(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
