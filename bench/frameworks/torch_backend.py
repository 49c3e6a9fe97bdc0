"""Compares the torch.distributed backend with Gloo in a PyTorch program: calls, dispatch, training steps.

    python3 -m bench.frameworks.torch_backend --quick
    python3 -m bench.frameworks.torch_backend --ranks 2 --launches 5 --json

Both backends run in the same processes, each with its own process group, and take turns. The rules of protocol.py
apply: buffers are rewritten outside the timed part, and times are medians of the slowest rank's times.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager

import ringreduce
from bench.frameworks.torch_ranks import PARAMETERS, SHARED, STEP_KINDS, Task, rank_main
from bench.turns import KEEP_FREED_MEMORY, add_json_option, keep
from ringreduce.bench.problem import Problem
from ringreduce.bench.programs import take_turns
from ringreduce.bench.report import mode_text, report, spread
from ringreduce.bench.results import Results, Row, as_dict, machine_facts, merge
from ringreduce.text import human_bytes, human_us, markdown

OURS, REPRODUCIBLE, GLOO = "ringreduce", "reproducible", "gloo"
REDUCED = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20, 64 << 20)
BLOCKS = (1 << 10, 32 << 10, 1 << 20, 8 << 20)  # bytes of a rank's block
QUICK_REDUCED, QUICK_BLOCKS = (8, 32 << 10, 4 << 20, 32 << 20), (32 << 10, 8 << 20)
PARTS = ("reduce_scatter", "all_gather")
PART_KINDS = [f"{part}{place}" for part in PARTS for place in ("", ", separate")]
BUSY = "while True: pass"


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default=OURS, help="backend to compare with Gloo (ringreduce)")
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 3, 4])
    parser.add_argument("--launches", type=int, help="number of launches (3, with --quick 1)")
    parser.add_argument("--budget", type=float, help="seconds per size (0.5, with --quick 0.15)")
    parser.add_argument("--quick", action="store_true", help="few sizes, one short launch")
    parser.add_argument("--without-steps", action="store_true", help="calls only")
    parser.add_argument(
        "--reproducible", action="store_true", help="also measure ours with RINGREDUCE_REPRODUCIBLE=1"
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="run N other processes that never wait"
    )
    add_json_option(parser)
    options = parser.parse_args()
    options.launches = options.launches or (1 if options.quick else 3)
    options.budget = options.budget or (0.15 if options.quick else 0.5)
    return options


def task_for(options: Namespace, ranks: int, launch: int) -> Task:
    backends = {OURS: (options.backend, {}), GLOO: ("gloo", {})}
    if options.reproducible:
        backends[REPRODUCIBLE] = (options.backend, {"RINGREDUCE_REPRODUCIBLE": "1"})
    if ranks > 1:
        backends[SHARED] = (options.backend, {})
    else:
        return Task(backends, (Problem("all_reduce", 8),), (), options.budget, launch)
    sizes = QUICK_REDUCED if options.quick else REDUCED
    totals = [block * ranks for block in (QUICK_BLOCKS if options.quick else BLOCKS)]
    problems = [Problem("all_reduce", nbytes) for nbytes in sorted({*sizes, *totals})]
    for nbytes in totals:
        problems += [Problem(kind, nbytes, in_place=place) for kind in PARTS for place in (True, False)]
    return Task(
        backends, tuple(problems), () if options.without_steps else tuple(STEP_KINDS), options.budget, launch
    )


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Runs processes that keep cores busy while the context is open."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(options: Namespace, ranks: int) -> Results:
    """Measures everything on a number of ranks, with new processes for each launch."""

    def launch(number: int) -> list[Row]:
        print(f"{ranks} ranks, launch {number + 1} of {options.launches}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            place = task_for(options, ranks, number), f"{folder}/store"
            return list(ringreduce.run(rank_main, ranks, *place, start="spawn")[0])

    done = take_turns({"all": launch}, options.launches)
    return Results({**machine_facts(ranks), **done.facts()}, merge(done.rows))


# --- tables ----------------------------------------------------------------------------------------------------


class World:
    """The measurements on one number of ranks."""

    def __init__(self, options: Namespace, ranks: int) -> None:
        self.ranks, self.results = ranks, measured(options, ranks)

    def us(self, kind: str, name: str, nbytes: int | None = None) -> float | None:
        sizes = self.results.sizes(kind)
        return self.results.us(kind, nbytes or sizes[0], name) if sizes else None

    def ratio(self, kind: str, nbytes: int | None = None) -> float | None:
        """Returns how many times as fast as Gloo it is."""
        ours, gloo = self.us(kind, OURS, nbytes), self.us(kind, GLOO, nbytes)
        return gloo / ours if ours and gloo else None

    def share(self, kind: str, name: str, nbytes: int) -> float | None:
        part, whole = self.us(kind, name, nbytes), self.us("all_reduce", name, nbytes)
        return part / whole if part and whole else None


def calls_text(world: World) -> str:
    title = f"all_reduce, float32 sum, in place, {world.ranks} ranks. {mode_text(world.results.facts)}"
    return f"{title}\n\n{report(world.results, 'all_reduce', {'gloo': [GLOO]})}"


def shares_text(world: World) -> str:
    """Returns the times of reduce_scatter_tensor and all_gather_into_tensor relative to an all_reduce of that size."""
    rows = [["", "", *(human_bytes(nbytes) for nbytes in world.results.sizes("all_gather"))]]
    for kind in PART_KINDS:
        for name in world.results.names(collective=kind):
            shares = (world.share(kind, name, nbytes) for nbytes in world.results.sizes(kind))
            rows.append([kind, name, *("-" if share is None else f"{share:.2f}" for share in shares)])
    what = "in place or with separate tensors"
    return f"Share of an all_reduce of the same total, {what}, {world.ranks} ranks:\n\n{markdown(rows)}"


def steps_text(world: World) -> str:
    rows = [["steps/s", *world.results.names(collective="ddp"), "of gloo's"]]
    for kind in STEP_KINDS:
        shown = [row for row in world.results.rows if row["collective"] == kind]
        rates = [f"{1e6 / row['median_us']:.2f} ±{spread(row) / 2:.0f}%" for row in shown]
        rows.append([kind, *rates, f"{world.ratio(kind):.2f} x"])
    what = f"Training steps, {PARAMETERS / 1e6:.1f} M parameters, {world.ranks} ranks"
    return f"{what}. {mode_text(world.results.facts)}\n\n{markdown(rows)}"


def dispatch_text(world: World) -> str:
    rows = [["all_reduce of 8 B, world size 1", "us a call"]]
    rows += [[row["library"], human_us(row["median_us"])] for row in world.results.rows]
    return markdown(rows)


def goals_text(worlds: dict[int, World]) -> str:
    """Returns a table of the goals, which were set for up to 4 ranks on 2 cores, and the measurements."""
    rows = [["goal", "", "measured", ""]]

    def add(what: str, limit: float, found: float | None, at_least: bool, unit: str = "") -> None:
        if found is None:
            return
        good = found >= limit if at_least else found <= limit
        wanted = f"{'>=' if at_least else '<='} {limit:g}{unit}"
        rows.append([what, wanted, f"{found:.2f}{unit}", "yes" if good else "NO"])

    two, four = worlds.get(2), worlds.get(4)
    if two:
        add("all_reduce, 8 B, 2 ranks", 6, two.us("all_reduce", OURS, 8), False, " us")
        add("the same beside Gloo", 10, two.ratio("all_reduce", 8), True, " x")
    if four:
        add("all_reduce, 8 B, 4 ranks", 10, four.ratio("all_reduce", 8), True, " x")
    if two:
        add("all_reduce, 32 MiB, 2 ranks", 4, two.ratio("all_reduce", 32 << 20), True, " x")
    for ranks, world in worlds.items():
        for kind in PART_KINDS:
            shares = [world.share(kind, OURS, nbytes) for nbytes in world.results.sizes(kind)]
            worst = max((share for share in shares if share is not None), default=None)
            add(f"{kind}, {ranks} ranks, worst share of all_reduce", 0.6, worst, False)
    if two:
        add("DDP steps/s, 2 ranks", 1.5, two.ratio("ddp"), True, " x")
    return markdown(rows)


def main() -> None:
    options = parse_arguments()
    os.environ.update(KEEP_FREED_MEMORY)
    with busy(options.busy):
        alone = World(options, 1)
        worlds = {ranks: World(options, ranks) for ranks in options.ranks}
    parts = [part for world in worlds.values() for part in (calls_text(world), shares_text(world))]
    if not options.without_steps:
        parts += [steps_text(world) for world in worlds.values()]
    print("\n\n".join([*parts, dispatch_text(alone), goals_text(worlds)]))
    keep(options, "torch_backend", [as_dict(world.results) for world in [alone, *worlds.values()]])


if __name__ == "__main__":
    main()
