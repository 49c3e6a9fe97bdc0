"""Compares a sharded Adam with replicated ones: memory of a rank, and time of a training step.

    python3 -m bench.training.sharded_optimizer --quick
    python3 -m bench.training.sharded_optimizer --ranks 2 --launches 3

To measure times, all contestants run in the same processes, each with its own model, and take turns. The time of a step
is that of the slowest rank. To measure memory, each contestant has its own processes. Every rank has one thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ringreduce
from bench.turns import KEEP_FREED_MEMORY, chain, in_turns, rotated
from ringreduce.bench.report import spread
from ringreduce.bench.results import Row, merge
from ringreduce.text import markdown

WIDTH, LAYERS = 1024, 24
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
REPLICATED, DATA_PARALLEL = "all-reduce, then Adam", "DataParallel and Adam"
STAGE_1, STAGE_2 = "DataParallel and stage 1", "stage 2"
NAMES = (REPLICATED, DATA_PARALLEL, STAGE_1, STAGE_2)
KINDS = {"Adam": {}, "fused Adam": {"fused": True}}
STEPS_BEFORE_MEMORY = 3

Step = Callable[[], None]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=16, help="samples per rank and step (16)")
    parser.add_argument("--launches", type=int, help="number of launches (3, with --quick 1)")
    parser.add_argument(
        "--rounds", type=int, help="steps of each contestant in a launch (15, with --quick 5)"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", choices=["memory", *KINDS], help="run one of the measurements, without the goals"
    )
    options = parser.parse_args()
    options.launches = options.launches or (1 if options.quick else 3)
    options.rounds = options.rounds or (5 if options.quick else 15)
    return options


# --- contestants -----------------------------------------------------------------------------------------------


def contestant(name: str, comm: Any, samples: int, adam: dict[str, Any]) -> tuple[Step, Any]:
    """Returns a training step and its optimizer."""
    model: nn.Module = chain(WIDTH, LAYERS)
    if name in (DATA_PARALLEL, STAGE_1):
        model = ringreduce.DataParallel(model, comm)
    if name in (STAGE_1, STAGE_2):
        stage = 1 if name == STAGE_1 else 2
        optimizer: Any = ringreduce.ShardedOptimizer(
            model.parameters(), torch.optim.Adam, comm, stage=stage, lr=1e-4, **adam
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **adam)
    average = averager(comm, model) if name == REPLICATED else lambda: None
    x = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(comm.rank))

    def step() -> None:
        optimizer.zero_grad(set_to_none=name != REPLICATED)
        model(x).square().mean().backward()
        average()
        optimizer.step()

    return step, optimizer


def averager(comm: Any, model: nn.Module) -> Callable[[], Any]:
    """Puts all gradients side by side in shared memory, for one all-reduce after the backward pass."""
    memory = ringreduce.zeros(PARAMETERS, torch.float32)
    for p, part in zip(
        model.parameters(), memory.split([p.numel() for p in model.parameters()]), strict=True
    ):
        p.grad = part.view(p.shape)
    return lambda: comm.all_reduce(memory, "avg")


# --- on each rank ----------------------------------------------------------------------------------------------


def times(comm: Any, kind: str, turn: int, options: Namespace) -> dict[str, list[float]]:
    """Returns the seconds of each contestant's steps on the slowest rank."""
    torch.set_num_threads(1)
    steps = {name: contestant(name, comm, options.samples, KINDS[kind])[0] for name in NAMES}
    found = in_turns(
        steps, options.rounds, 1, comm.barrier, lambda names, number: rotated(names, turn + number)
    )
    return {name: comm.all_reduce(np.array(own), "max").tolist() for name, own in found.items()}


def memory(comm: Any, name: str, options: Namespace) -> tuple[int, int]:
    """Returns the bytes of a rank's optimizer state, and by how much model and training increased its memory."""
    torch.set_num_threads(1)
    torch.optim.Adam(nn.Linear(1, 1).parameters()).step()  # allocates what torch itself needs
    before = resident()
    step, optimizer = contestant(name, comm, options.samples, {})
    for _ in range(STEPS_BEFORE_MEMORY):
        step()
    comm.barrier()
    grown = resident() - before
    comm.barrier()  # no rank may end while another one counts the pages that they share
    state = sum(value.nbytes for own in optimizer.state.values() for value in own.values())
    return state, grown


def resident() -> int:
    """Returns the bytes of memory of this process, with its share of the pages that several processes share."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory must not count
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Pss:"))
    return int(line.split()[1]) << 10


# --- tables ----------------------------------------------------------------------------------------------------


def measured_times(options: Namespace, kind: str) -> dict[str, Row]:
    rows = []
    for launch in range(options.launches):
        print(f"{kind}, launch {launch + 1} of {options.launches}", file=sys.stderr, flush=True)
        found = ringreduce.run(times, options.ranks, kind, launch, options, start="spawn")[0]
        for name, own in found.items():
            p25, median, p75 = (float(q) * 1e6 for q in np.quantile(own, [0.25, 0.5, 0.75]))
            about = {"library": name, "collective": kind, "ranks": options.ranks, "bytes": 4 * PARAMETERS}
            rows.append({**about, "median_us": median, "p25_us": p25, "p75_us": p75, "wrong": 0})
    return {row["library"]: row for row in merge(rows)}


def time_rows(kinds: dict[str, dict[str, Row]]) -> list[list[str]]:
    rows = [["ms a step", *(text for kind in kinds for text in (kind, f"of {DATA_PARALLEL}'s"))]]
    for name in NAMES:
        row = [name]
        for cells in kinds.values():
            median, reference = cells[name]["median_us"], cells[DATA_PARALLEL]["median_us"]
            row += [f"{median / 1e3:.1f} ±{spread(cells[name]) / 2:.0f}%", f"{median / reference:.2f}"]
        rows.append(row)
    return rows


def measured_memory(options: Namespace) -> dict[str, tuple[int, int]]:
    """Returns, for each contestant, the figures of the rank that holds most."""
    found = {}
    for name in NAMES:
        ranks = ringreduce.run(memory, options.ranks, name, options, start="spawn")
        found[name] = max(state for state, _ in ranks), max(grown for _, grown in ranks)
    return found


def memory_rows(found: dict[str, tuple[int, int]]) -> list[list[str]]:
    rows = [["MiB a rank", "optimizer state", "of replicated", "resident, all of training", "of replicated"]]
    replicated = found[DATA_PARALLEL]
    for name, own in found.items():
        shown = [
            text
            for mine, theirs in zip(own, replicated, strict=True)
            for text in (f"{mine / 2**20:.1f}", f"{mine / theirs:.2f}")
        ]
        rows.append([name, *shown])
    return rows


def goal_rows(kinds: dict[str, dict[str, Row]], found: dict[str, tuple[int, int]]) -> list[list[str]]:
    rows = [["goal, of DataParallel and Adam", "", "measured", ""]]
    for name in (STAGE_1, STAGE_2):
        share = found[name][0] / found[DATA_PARALLEL][0]
        rows.append([f"{name}: optimizer memory", "<= 0.60", f"{share:.2f}", "yes" if share <= 0.6 else "NO"])
        for kind, cells in kinds.items():
            ratio = cells[name]["median_us"] / cells[DATA_PARALLEL]["median_us"]
            verdict = "yes" if ratio <= 1.1 else "NO"
            rows.append([f"{name}: step time, {kind}", "<= 1.10", f"{ratio:.2f}", verdict])
    return rows


def main() -> None:
    options = parse_arguments()
    found = measured_memory(options) if options.only in (None, "memory") else {}
    os.environ.update(KEEP_FREED_MEMORY)
    kinds = {kind: measured_times(options, kind) for kind in KINDS if options.only in (None, kind)}
    tables = [memory_rows(found)] if found else []
    tables += [time_rows(kinds)] if kinds else []
    tables += [goal_rows(kinds, found)] if found and kinds else []
    print(f"{PARAMETERS / 1e6:.1f} M parameters, {options.ranks} ranks, {options.samples} samples of each\n")
    print("\n\n".join(markdown(table) for table in tables))


if __name__ == "__main__":
    main()
