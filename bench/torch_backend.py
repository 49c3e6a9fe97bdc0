"""The torch.distributed backend beside Gloo, as a PyTorch program sees them: calls, dispatch, training steps.

    python3 bench/torch_backend.py --quick
    python3 bench/torch_backend.py --ranks 2 --launches 5 --json

Both backends live in the same processes, each in a process group of its own, and take turns. Everything is measured
by the rules of protocol.py: buffers rewritten outside the timed part, the slowest rank's time, medians.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as built in this checkout, if not installed

from harness import Question, Run, as_json, merge
from report import Cells, human_bytes, human_us, layout, mode_text, report, spread, write_json
from torch_ranks import PARAMETERS, SILENT, STEP_KINDS, Line, Task, rank_main

from ringreduce import _engine
from ringreduce.bench.protocol import Problem
from ringreduce.bench.results import mode_of

OURS, REPRODUCIBLE, GLOO = "ringreduce", "reproducible", "gloo"
REDUCED = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20, 64 << 20)
BLOCKS = (1 << 10, 32 << 10, 1 << 20, 8 << 20)  # of a rank
QUICK_REDUCED, QUICK_BLOCKS = (8, 32 << 10, 4 << 20, 32 << 20), (32 << 10, 8 << 20)
PARTS = ("reduce_scatter", "all_gather")
PART_KINDS = [f"{part}{place}" for part in PARTS for place in ("", ", separate")]
BUSY = "while True: pass"
# Otherwise glibc gives back 100 MB of gradients in some steps, of whichever contestant's lie at the heap's end, and
# faulting them in again takes longer than a step.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
LIMIT = 900.0  # seconds for one launch


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default=OURS, help="what is compared with Gloo")
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 3, 4])
    parser.add_argument("--launches", type=int, help="of all ranks; 3, with --quick 1")
    parser.add_argument("--budget", type=float, help="seconds per size; 0.5, with --quick 0.15")
    parser.add_argument("--quick", action="store_true", help="few sizes, one short launch")
    parser.add_argument("--without-steps", action="store_true", help="calls only")
    parser.add_argument(
        "--reproducible", action="store_true", help="ours with RINGREDUCE_REPRODUCIBLE=1, too"
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="beside N other processes that never wait"
    )
    parser.add_argument("--json", action="store_true", help="keep all figures in bench/results/")
    options = parser.parse_args()
    options.launches = options.launches or (1 if options.quick else 3)
    options.budget = options.budget or (0.15 if options.quick else 0.5)
    return options


def task_for(options: Namespace, ranks: int, launch: int) -> Task:
    backends = {OURS: (options.backend, {}), GLOO: ("gloo", {})}
    if options.reproducible:
        backends[REPRODUCIBLE] = (options.backend, {"RINGREDUCE_REPRODUCIBLE": "1"})
    if ranks == 1:
        return Task(backends, (Problem("all_reduce", 8),), (), options.budget, launch)
    sizes = QUICK_REDUCED if options.quick else REDUCED
    totals = [block * ranks for block in (QUICK_BLOCKS if options.quick else BLOCKS)]
    problems = [Problem("all_reduce", nbytes) for nbytes in sorted({*sizes, *totals})]
    for nbytes in totals:
        problems += [Problem(kind, nbytes, in_place=place) for kind in PARTS for place in (True, False)]
    return Task(
        backends, tuple(problems), () if options.without_steps else tuple(STEP_KINDS), options.budget, launch
    )


def launch_ranks(ranks: int, task: Task) -> list[Line]:
    """What rank 0 found, in fresh processes."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        place = (ranks, task, f"{folder}/store", sending)
        processes = [context.Process(target=rank_main, args=(rank, *place)) for rank in range(ranks)]
        for process in processes:
            process.start()
        sending.close()
        try:
            if not receiving.poll(LIMIT):
                raise SystemExit(f"{ranks} ranks were not done after {LIMIT} s")
            return receiving.recv()
        except EOFError:
            raise SystemExit(f"{ranks} ranks: rank 0 died") from None
        finally:
            for process in processes:
                process.join(10)
                process.kill()


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other users of the cores, for as long as it lasts."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(options: Namespace, ranks: int) -> list[Run]:
    """A run per launch and contestant, with the machine's mode before and after."""
    runs = []
    for launch in range(options.launches):
        task = task_for(options, ranks, launch)
        print(f"{ranks} ranks, launch {launch + 1} of {options.launches}", file=sys.stderr, flush=True)
        before = _engine.probe_exchange()
        lines = launch_ranks(ranks, task)
        after = _engine.probe_exchange()
        for name in [*task.backends, SILENT] if task.steps else task.backends:
            own = [line for line in lines if line["library"] == name]
            runs.append(Run(launch, name, mode_of(before, after), [before, after], own))
    return runs


# --- tables ----------------------------------------------------------------------------------------------------


class World:
    """All that was measured with one number of ranks."""

    def __init__(self, options: Namespace, ranks: int) -> None:
        self.ranks, self.runs = ranks, measured(options, ranks)
        self.questions: dict[str, Question] = {}
        self.cells: dict[str, Cells] = {}
        lines = self.runs[0].lines
        for kind in dict.fromkeys(line["collective"] for line in lines):
            sizes = tuple(dict.fromkeys(line["bytes"] for line in lines if line["collective"] == kind))
            self.questions[kind] = Question(kind, ranks, sizes, options.budget)
            own = [Run(**{**vars(run), "lines": _only(kind, run.lines)}) for run in self.runs]
            self.cells[kind] = merge([run for run in own if run.lines], self.questions[kind])

    def us(self, kind: str, name: str, nbytes: int | None = None) -> float | None:
        if kind not in self.cells:
            return None
        cell = self.cells[kind][name].get(nbytes or self.questions[kind].sizes[0])
        return cell.median_us if cell else None

    def ratio(self, kind: str, nbytes: int | None = None) -> float | None:
        """How many times as fast as Gloo."""
        ours, gloo = self.us(kind, OURS, nbytes), self.us(kind, GLOO, nbytes)
        return gloo / ours if ours and gloo else None

    def share(self, kind: str, name: str, nbytes: int) -> float | None:
        part, whole = self.us(kind, name, nbytes), self.us("all_reduce", name, nbytes)
        return part / whole if part and whole else None


def _only(kind: str, lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["collective"] == kind]


def calls_text(world: World) -> str:
    kind = "all_reduce"
    return report(world.questions[kind], world.runs, world.cells[kind], {"gloo": [GLOO]})


def shares_text(world: World) -> str:
    """reduce_scatter_tensor and all_gather_into_tensor as shares of an all_reduce of the same total."""
    rows = [["", "", *(human_bytes(nbytes) for nbytes in world.questions["all_gather"].sizes)]]
    for kind in PART_KINDS:
        for name in world.cells[kind]:
            shares = (world.share(kind, name, nbytes) for nbytes in world.questions[kind].sizes)
            rows.append([kind, name, *("-" if share is None else f"{share:.2f}" for share in shares)])
    what = "in place or with separate tensors"
    return f"Share of an all_reduce of the same total, {what}, {world.ranks} ranks:\n\n{layout(rows)}"


def steps_text(world: World) -> str:
    rows = [["steps/s", *world.cells["ddp"], "of gloo's"]]
    for kind in STEP_KINDS:
        cells = world.cells[kind].values()
        shown = [next(iter(cell.values())) for cell in cells]
        rates = [f"{1e6 / cell.median_us:.2f} ±{50 * spread(cell):.0f}%" for cell in shown]
        rows.append([kind, *rates, f"{world.ratio(kind):.2f} x"])
    what = f"Training steps, {PARAMETERS / 1e6:.1f} M parameters, {world.ranks} ranks"
    return f"{what}. {mode_text(world.runs)}\n\n{layout(rows)}"


def dispatch_text(world: World) -> str:
    rows = [["all_reduce of 8 B, world size 1", "us a call"]]
    for name, cells in world.cells["all_reduce"].items():
        rows.append([name, human_us(cells[8].median_us or 0)])
    return layout(rows)


def goals_text(worlds: dict[int, World]) -> str:
    """The goals that were set, and what was measured; 8 bytes and up to 4 ranks on 2 cores."""
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
            if kind in world.cells:
                shares = [world.share(kind, OURS, nbytes) for nbytes in world.questions[kind].sizes]
                worst = max(share for share in shares if share is not None)
                add(f"{kind}, {ranks} ranks, worst share of all_reduce", 0.6, worst, False)
    if two:
        add("DDP steps/s, 2 ranks", 1.5, two.ratio("ddp"), True, " x")
    return layout(rows)


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
    if options.json:
        tables: list[dict[str, Any]] = [
            as_json(question, world.runs, world.cells[kind])
            for world in [alone, *worlds.values()]
            for kind, question in world.questions.items()
        ]
        print(f"\n{write_json('torch_backend', tables)}")


if __name__ == "__main__":
    main()
