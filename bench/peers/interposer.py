"""Compares the interposer with the MPI library's own calls, under Open MPI and MPICH, to decide which sizes to serve.

    python3 -m bench.peers.interposer --ranks 2 --functions allreduce,bcast --sizes 4,1K,4M

Both are called in turn in the same processes (peers/mpi_interposed.c), in several launches. A time is that of the
slowest rank, and the median over the launches of their medians. The range is that of the ratios of the launches.
`make bench-peers` installs the MPI libraries first.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.peers.contestants import BUILD, ROOT, home_of
from ringreduce import _engine
from ringreduce.bench import mpi
from ringreduce.bench.programs import run_program
from ringreduce.bench.results import mode_of
from ringreduce.text import human_bytes, sizes

SOURCE = ROOT / "bench" / "peers" / "mpi_interposed.c"
FUNCTIONS = "allreduce reduce scan exscan reduce_scatter reduce_scatter_block allgather allgatherv gather gatherv scatter scatterv alltoall alltoallv bcast barrier".split()  # noqa: E501,SIM905
NONBLOCKING = ["iallreduce", "iallgather", "ialltoall", "ibcast", "ibarrier"]
SIZES = [4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 64 << 20]

Cells = dict[tuple[str, int], list[dict[str, Any]]]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", default="openmpi,mpich", help="MPI libraries")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--functions", default=",".join(FUNCTIONS), help=f"also {', '.join(NONBLOCKING)}")
    parser.add_argument("--sizes", type=sizes, default=SIZES)
    parser.add_argument(
        "--memory", choices=["ordinary", "mpi"], default="ordinary", help="mpi: of MPI_Alloc_mem"
    )
    parser.add_argument("--op", choices=["sum", "user"], default="sum", help="user: made by MPI_Op_create")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.4, help="seconds for each size (0.4)")
    parser.add_argument(
        "--served", default="all", help="value of RINGREDUCE_MPI: all, auto, or off (which shows the noise)"
    )
    return parser.parse_args()


def preload(vendor: str) -> Path:
    python = ROOT / ".venv" / "bin" / "python"
    words = [python, "-m", "ringreduce", "mpi-preload", "--mpicc", home_of(vendor).home / "bin" / "mpicc"]
    run = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Path(run.stdout.strip())


def program(vendor: str) -> Path:
    made = BUILD / f"mpi_interposed-{vendor}"
    if not made.exists() or made.stat().st_mtime < SOURCE.stat().st_mtime:
        made.parent.mkdir(parents=True, exist_ok=True)
        mpicc = home_of(vendor).home / "bin" / "mpicc"
        subprocess.run([mpicc, "-std=gnu11", "-O3", "-march=native", SOURCE, "-o", made], check=True)
    return made


def launch(vendor: str, ranks: int, function: str, options: Namespace, library: Path) -> list[dict[str, Any]]:
    # A block has at least one element.
    unit = 4 * ranks if re.search("scatter|gather|alltoall", function) else 4
    asked = [4] if function.endswith("barrier") else sorted({max(size, unit) for size in options.sizes})
    where = home_of(vendor)
    command = [
        *mpi.launcher(vendor, where.mpirun, ranks),
        *(str(program(vendor)), "--function", function, "--sizes", ",".join(map(str, asked))),
        *("--budget", str(options.budget), "--memory", options.memory, "--op", options.op),
    ]
    own = os.environ | mpi.environment(vendor, where.home, ranks)
    own |= {"LD_PRELOAD": str(library), "RINGREDUCE_MPI": options.served}
    limit = 60 + len(asked) * 20 * options.budget
    lines, problem, last = run_program(command, own, limit)
    if problem:
        print(f"{vendor} {function} on {ranks} ranks: {problem} {last}", flush=True)
    return lines


def report(vendor: str, ranks: int, cells: Cells) -> None:
    print(
        f"\n{vendor}, {ranks} ranks, us: the MPI library's own, ours, ours / own (lowest to highest launch)\n"
    )
    print("| function | size | own | ours | ratio |\n|---|--:|--:|--:|--:|")
    for (function, size), lines in cells.items():
        ratios = sorted(line["ours_us"][1] / line["own_us"][1] for line in lines)
        own, ours = (statistics.median(line[way][1] for line in lines) for way in ("own_us", "ours_us"))
        ratio = statistics.median(ratios)
        slower = " slower" if ratio > 1.02 else ""
        print(
            f"| {function} | {human_bytes(size)} | {own:.3g} | {ours:.3g} | {ratio:.2f} ({ratios[0]:.2f} to "
            f"{ratios[-1]:.2f}){slower} |",
            flush=True,
        )


def main() -> None:
    options = parse_arguments()
    for vendor in options.mpi.split(","):
        library = preload(vendor)
        for ranks in map(int, options.ranks.split(",")):
            ns = _engine.probe_exchange()
            print(f"\ncore-to-core exchange: {mode_of(ns, ns)}, load {os.getloadavg()[0]:.1f}")
            cells: Cells = defaultdict(list)
            for _ in range(options.launches):
                for function in options.functions.split(","):
                    for line in launch(vendor, ranks, function, options, library):
                        cells[function, line["bytes"]].append(line)
            report(vendor, ranks, cells)


if __name__ == "__main__":
    main()
